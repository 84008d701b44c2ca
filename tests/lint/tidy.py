# SPDX-License-Identifier: Apache-2.0
"""clang-tidy over the sources named in BUILD/compile_commands.json: tidy.py BUILD. What was clean and has not changed
since (source, our headers it includes, .clang-tidy, compiler flags) is not looked at again, in any clone: the user's
cache folder remembers, as ccache does."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import common

# Tests are left to the compiler's warnings and the sanitizers: GoogleTest's macros cost more time than all the rest.
FOLDERS = ("userspace",)


def digest(*chunks):
    hasher = hashlib.sha256()
    for chunk in chunks:
        hasher.update(hashlib.sha256(chunk).digest())
    return hasher.hexdigest()


def with_headers(root, source):
    """The source and every header of ours that it includes, directly or not."""
    found, todo = {source}, [source]
    while todo:
        path = todo.pop()
        for _, name, quoted in common.includes(path):
            for candidate in (path.parent / name, root / "include" / name, root / "userspace" / name) if quoted else ():
                if candidate.exists() and candidate.resolve() not in found:
                    found.add(candidate.resolve())
                    todo.append(candidate.resolve())
    return sorted(found)


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(base) / "vhost-xdp" / "tidy"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check(root, build, source):
    """What clang-tidy says about one source; empty when clean."""
    command = ["clang-tidy", "-p", str(build), "--quiet", str(source)]
    run = subprocess.run(command, cwd=root, text=True, capture_output=True)
    if run.returncode == 0:
        return ""
    return run.stdout.strip() or run.stderr.strip()


def lint(root, build):
    commands = {entry["file"]: entry["command"] for entry in json.loads((build / "compile_commands.json").read_text())}
    sources = [p for p in common.own_files(root, ".cpp")
               if p.relative_to(root).parts[0] in FOLDERS and str(p) in commands]
    if not sources:
        return ["no source of ours in compile_commands.json"]
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    settings = (root / ".clang-tidy").read_bytes()
    clean = cache_folder()

    def judge(source):
        flags = commands[str(source)].replace(str(build.resolve()), "BUILD").replace(str(root), "ROOT")
        texts = [path.read_bytes() for path in with_headers(root, source)]
        stamp = clean / digest(version, settings, flags.encode(), *texts)
        if stamp.exists():
            return ""
        said = check(root, build, source)
        if not said:
            stamp.touch()
        return said

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [said for said in pool.map(judge, sources) if said]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: tidy.py BUILD")
    common.main(lambda root: lint(root, pathlib.Path(sys.argv[1])))
