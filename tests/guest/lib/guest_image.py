# SPDX-License-Identifier: Apache-2.0
"""The test guest's kernel and initramfs: Debian's cloud kernel, unpacked but not installed, and busybox with a few tools.

As a program it prepares the cache and prints the two paths: python3 guest_image.py
"""

import lzma
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import typing

META_PACKAGE = "linux-image-cloud-amd64"
MODULES = ("virtio_pci", "virtio_net")  # with everything they depend on
TOOLS = ("iperf3", "ethtool")  # with their shared libraries; all else is busybox
INIT = pathlib.Path(__file__).with_name("guest_init.sh")


class Unavailable(Exception):
    """Something the guest needs cannot be had on this machine: the test is skipped, not failed."""


class Image(typing.NamedTuple):
    kernel: pathlib.Path
    initramfs: pathlib.Path


def default_cache() -> pathlib.Path:
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "vhost-xdp"


def prepare(initramfs: pathlib.Path, cache: pathlib.Path) -> Image:
    """The image, its initramfs written anew. A kernel once in the cache is used again; remove the folder for a newer one."""
    kernels = sorted(cache.glob("kernel-*"), key=lambda folder: folder.stat().st_mtime)
    folder = kernels[-1] if kernels else fetch_kernel(cache)
    write_initramfs(initramfs, folder)
    return Image(folder / "vmlinuz", initramfs)


def fetch_kernel(cache: pathlib.Path) -> pathlib.Path:
    """The new cache folder with `vmlinuz` and the modules as .ko files. Needs apt's package lists and a mirror."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as scratch:
        depends = output_of("apt-cache", "depends", META_PACKAGE)
        found = re.search(r"Depends: (linux-image-(\S+))", depends)
        if not found:
            raise Unavailable(f"apt knows no kernel for {META_PACKAGE} (apt-get update?)")
        package, release = found.groups()
        output_of("apt-get", "download", package, cwd=scratch)
        (archive,) = pathlib.Path(scratch).glob("*.deb")
        output_of("dpkg-deb", "-x", str(archive), scratch)

        staged = pathlib.Path(scratch) / "staged"
        staged.mkdir()
        shutil.copy(pathlib.Path(scratch) / f"boot/vmlinuz-{release}", staged / "vmlinuz")
        order = stage_modules(pathlib.Path(scratch) / f"lib/modules/{release}", staged)
        (staged / "modules").write_text("\n".join(order) + "\n")
        target = cache / f"kernel-{release}"
        try:
            staged.rename(target)
        except OSError:  # another run was quicker
            if not (target / "vmlinuz").exists():
                raise
    return target


def stage_modules(tree: pathlib.Path, staged: pathlib.Path) -> list[str]:
    """Module file names in the order of loading, the files copied uncompressed into `staged`."""
    files = {re.sub(r"\.ko(\.xz)?$", "", path.name).replace("-", "_"): path for path in tree.rglob("*.ko*")}
    order: list[str] = []

    def add(name: str) -> None:
        if name not in files or f"{name}.ko" in order:  # not in files: built into the kernel
            return
        content = files[name].read_bytes()
        if files[name].suffix == ".xz":
            content = lzma.decompress(content)
        depends = re.search(rb"\0depends=([^\0]*)\0", content)
        for needed in depends.group(1).decode().split(",") if depends else []:
            add(needed.replace("-", "_"))
        (staged / f"{name}.ko").write_bytes(content)
        order.append(f"{name}.ko")

    for module in MODULES:
        add(module)
    return order


def write_initramfs(target: pathlib.Path, kernel: pathlib.Path) -> None:
    archive = Cpio()
    order = (kernel / "modules").read_text().split()
    for name in order:
        archive.file(f"lib/modules/{name}", (kernel / name).read_bytes())
    archive.file("modules", "".join(f"/lib/modules/{name}\n" for name in order).encode())
    archive.file("init", INIT.read_bytes(), mode=0o755)
    archive.file("bin/busybox", which("busybox").read_bytes(), mode=0o755)
    archive.console()
    libraries: set[str] = set()
    for tool in TOOLS:
        path = which(tool)
        archive.file(f"bin/{tool}", path.read_bytes(), mode=0o755)
        libraries.update(re.findall(r"(/\S+) \(0x", output_of("ldd", str(path))))
    for library in sorted(libraries):
        archive.file(library.lstrip("/"), pathlib.Path(library).read_bytes(), mode=0o755)
    target.write_bytes(archive.finish())


class Cpio:
    """An initramfs in the kernel's "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.folders: set[str] = set()

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self._folders_of(name)
        self._entry(name, 0o100000 | mode, content)

    def console(self) -> None:
        """/dev/console: the kernel opens it for /init before any devtmpfs is mounted."""
        self._folders_of("dev/console")
        self._entry("dev/console", 0o020600, device=(5, 1))

    def finish(self) -> bytes:
        self._entry("TRAILER!!!", 0)
        return b"".join(self.parts)

    def _folders_of(self, name: str) -> None:
        for folder in reversed(pathlib.PurePath(name).parents):
            if str(folder) not in self.folders | {"."}:
                self.folders.add(str(folder))
                self._entry(str(folder), 0o040755)

    def _entry(self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        inode, owner, links, changed, checksum = len(self.parts) + 1, 0, 1, 0, 0
        fields = (inode, mode, owner, owner, links, changed, len(content), 0, 0, *device, len(name) + 1, checksum)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self.parts.append(head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4))


def which(tool: str) -> pathlib.Path:
    path = shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not path:
        raise Unavailable(f"{tool} is not installed")
    return pathlib.Path(path)


def output_of(*command: str, cwd: str | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout


if __name__ == "__main__":
    for item in prepare(default_cache() / "initramfs", default_cache()):
        print(item)
