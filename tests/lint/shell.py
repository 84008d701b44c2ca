# SPDX-License-Identifier: Apache-2.0
"""Shell scripts parse (bash -n) and shellcheck finds nothing."""
import shutil
import subprocess

import common


def is_script(path):
    if path.suffix == ".sh":
        return True
    if path.suffix:
        return False
    first = common.text_of(path).split("\n", 1)[0]
    return first.startswith("#!") and "sh" in first.split("/")[-1]


def lint(root):
    complaints = []
    scripts = [p for p in common.own_files(root) if is_script(p)]
    for path in scripts:
        run = subprocess.run(["bash", "-n", str(path)], text=True, capture_output=True)
        if run.returncode:
            complaints.append(f"{path.relative_to(root)}: {run.stderr.strip()}")
    if scripts and shutil.which("shellcheck"):
        # SC1091: a sourced file that is not given on the command line; SC2187: busybox ash is read as dash.
        options = ["-x", "-P", "SCRIPTDIR", "-S", "warning", "-e", "SC1091,SC2187", "-f", "gcc"]
        command = ["shellcheck", *options, *map(str, scripts)]
        run = subprocess.run(command, text=True, capture_output=True)
        complaints += run.stdout.splitlines()
    return complaints


if __name__ == "__main__":
    common.main(lint)
