# SPDX-License-Identifier: Apache-2.0
"""What must not be committed: paths of one machine, open ends without an issue number, bare rx/tx, conflict marks."""
import re

import common

# Each: name, pattern, why. Matched line by line. The patterns are written so that they do not match themselves.
RULES = [
    ("machine path", re.compile(r"(?<![\w.])/(?:work|home|root|Users)/[\w.]"), "a path of one machine"),
    ("todo", re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b(?!\(#\d+\))"), "name the issue, as in TO" "DO(#12)"),
    ("conflict", re.compile(r"^(?:<{7}|>{7}) "), "a merge conflict"),
    ("trailing space", re.compile(r"[ \t]+$"), "trailing white space"),
]
# A name of ours with rx or tx as a word: directions are from_guest and to_guest. Kernel and DPDK names are theirs, so
# this looks only at what our headers declare.
DIRECTION = re.compile(r"\b(?:rx|tx)_\w+\s*\(|\b(?:Rx|Tx)[A-Z]\w+|\b\w+_(?:rx|tx)_?\s*[;({=]")
KEEP = {".md"}  # two spaces at a line's end are a line break there


def lint(root):
    complaints = []
    for path in common.own_files(root):
        where = path.relative_to(root)
        if path.suffix in (".png", ".pcap", ".bin") or where.parts[0] == ".git":
            continue
        for number, line in common.lines_of(path):
            for name, pattern, why in RULES:
                if name == "trailing space" and path.suffix in KEEP:
                    continue
                if pattern.search(line):
                    complaints.append(f"{where}:{number}: {name}: {why}")
            if where.parts[0] == "include" and DIRECTION.search(line.split("//")[0]):
                complaints.append(f"{where}:{number}: direction: say from_guest or to_guest")
    return complaints


if __name__ == "__main__":
    common.main(lint)
