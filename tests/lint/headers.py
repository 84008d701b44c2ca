# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone, is included once, and every source says its licence."""
import concurrent.futures
import os
import re
import subprocess

import common

COMPILER = os.environ.get("VXDP_CXX", "g++")
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
DUAL = "GPL-2.0-only OR BSD-2-Clause"  # BPF programs and what they share with us
APACHE = "Apache-2.0"


def licence_of(where):
    kernel_side = where.parts[0] == "bpf" or where.parts[:3] == ("include", "vxdp", "abi")
    return DUAL if kernel_side or where.parts[:2] == ("tests", "bpf") and where.suffix in (".c", ".h") else APACHE


def wrong_licence(path, where):
    wanted = licence_of(where)
    head = "\n".join(common.text_of(path).splitlines()[:3])
    match = re.search(r"SPDX-License-Identifier: ([^*\n]+?)\s*(?:\*/|-->|$)", head, re.MULTILINE)
    if not match:
        return f"{where}: no SPDX-License-Identifier in the first three lines"
    return None if match[1] == wanted else f"{where}: licence {match[1]}, not {wanted}"


def does_not_compile(header, where, root):
    # Twice: the second shows a missing guard.
    source = f'#include "{header}"\n#include "{header}"\n'
    command = [COMPILER, *FLAGS, "-x", "c++", "-I", str(root / "include"), "-"]
    run = subprocess.run(command, input=source, text=True, capture_output=True)
    return None if run.returncode == 0 else f"{where}: does not compile alone: {run.stderr.strip().splitlines()[0]}"


def lint(root):
    complaints = []
    for path in common.own_files(root, ".hpp", ".h", ".cpp", ".c", ".sh", ".py"):
        complaints.append(wrong_licence(path, path.relative_to(root)))
    # The headers of bpf/ need the BPF compiler; the programs that use them test them.
    headers = [p for p in common.own_files(root, ".hpp", ".h") if p.relative_to(root).parts[0] == "include"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints += pool.map(lambda p: does_not_compile(p, p.relative_to(root), root), headers)
    return [c for c in complaints if c]


if __name__ == "__main__":
    common.main(lint)
