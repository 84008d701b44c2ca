# SPDX-License-Identifier: Apache-2.0
"""A QEMU guest whose network card is a vhost-user socket, driven command by command through its second serial port."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import time

from guest_image import Image, output_of, which

MEMORY_MIB = 384
CPUS = 2
MAC = "52:54:00:77:00:02"
READY = re.compile(rb"@@ready (\S+)\r?\n")


class GuestGone(Exception):
    """The guest does not answer: nothing more can be learned from it."""


class CommandFailed(Exception):
    """A command in the guest ended with a status other than 0."""


def msix_works(accelerator: str) -> bool:
    """QEMU before 8 follows a null pointer when a vhost-user card uses MSI-X without KVM's irqfd: one interrupt line then."""
    version = output_of(str(which("qemu-system-x86_64")), "--version")
    major = re.search(r"version (\d+)", version)
    return accelerator.startswith("kvm") or (major is not None and int(major.group(1)) >= 8)


class Guest:
    """One QEMU process. The socket of the back end must be served when it starts; later it may come and go."""

    def __init__(self, image: Image, vhost_socket: pathlib.Path, logs: pathlib.Path,
                 queues: int = 1, device: str = "") -> None:
        self.console = logs / "console.log"
        agent_path = logs / "agent.sock"
        accelerator = os.environ.get("VXDP_GUEST_ACCEL", "tcg,thread=multi")
        vectors = 2 * queues + 2 if msix_works(accelerator) else 0  # one a ring, configuration, control
        command = [
            which("qemu-system-x86_64"), "-nodefaults", "-no-user-config", "-display", "none",
            "-accel", accelerator, "-smp", str(CPUS), "-m", str(MEMORY_MIB),
            "-object", f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on", "-machine", "q35,memory-backend=memory",
            "-kernel", image.kernel, "-initrd", image.initramfs,
            "-append", "console=ttyS0 quiet loglevel=5 nowatchdog random.trust_cpu=on tsc=reliable",
            "-serial", f"file:{self.console}",
            "-chardev", f"socket,id=agent,path={agent_path},server=on,wait=off", "-serial", "chardev:agent",
            "-chardev", f"socket,id=port,path={vhost_socket},reconnect=1",
            "-netdev", f"vhost-user,id=net,chardev=port,queues={queues}",
            "-device", f"virtio-net-pci,netdev=net,mac={MAC},vectors={vectors},romfile="
                       + (",mq=on" if queues > 1 else "") + (f",{device}" if device else ""),
        ]  # fmt: skip
        with open(logs / "qemu.log", "wb") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.tokens = 0
        self.received = b""
        self.agent = self._connect(agent_path)

    def _connect(self, path: pathlib.Path) -> socket.socket:
        agent = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 10
        while True:
            try:
                agent.connect(str(path))
                return agent
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise GuestGone(f"QEMU did not start (status {self.process.poll()})") from error
                time.sleep(0.05)

    def wait_ready(self, seconds: float = 40) -> str:
        """The boot id, once /init serves commands: after the start and after each reboot."""
        return self._receive_until(READY, seconds).group(1).decode()

    def run(self, command: str, seconds: float = 20) -> str:
        """The output of `command`, stdout and stderr together, given to sh -c. One line; background jobs must redirect."""
        self.tokens += 1
        self.agent.sendall(f"{self.tokens} {command}\n".encode())
        done = self._receive_until(re.compile(rb"\n@@done %d (\d+)\r?\n" % self.tokens), seconds)
        output = done.string[: done.start()].decode(errors="replace")
        if done.group(1) != b"0":
            raise CommandFailed(f"guest: {command}: status {done.group(1).decode()}: {output.strip()[-300:]}")
        return output

    def reboot(self) -> str:
        """The new boot id. The guest gets no chance to put its card in order first."""
        self.agent.sendall(b"0 reboot -f\n")
        return self.wait_ready()

    def stop(self) -> None:
        self.agent.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _receive_until(self, pattern: re.Pattern[bytes], seconds: float) -> re.Match[bytes]:
        deadline = time.monotonic() + seconds
        while not (found := pattern.search(self.received)):
            self.agent.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                chunk = self.agent.recv(65536)
            except TimeoutError as error:
                raise GuestGone(f"no answer within {seconds:.0f} s; last output {self.received[-200:]!r}") from error
            if not chunk:
                raise GuestGone("QEMU ended")
            self.received += chunk
        self.received = self.received[found.end() :]
        return found
