# SPDX-License-Identifier: Apache-2.0
"""C++ is laid out as .clang-format says. BPF and abi/ are kernel style and are left alone."""
import subprocess

import common


def lint(root):
    files = [str(p) for p in common.own_files(root, ".hpp", ".cpp")]
    if not files:
        return []
    run = subprocess.run(["clang-format", "--dry-run", "-Werror", *files], cwd=root, text=True, capture_output=True)
    complaints = sorted({line.split(":")[0] for line in run.stderr.splitlines() if ": error:" in line})
    if run.returncode and not complaints:
        return [run.stderr.strip()]
    return [f"{c}: not formatted (clang-format -i)" for c in complaints]


if __name__ == "__main__":
    common.main(lint)
