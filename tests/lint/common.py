# SPDX-License-Identifier: Apache-2.0
"""Shared by the lints: which files are ours, how to report. A lint is a function root -> list of complaints."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("include", "userspace", "tests", "bpf", "deploy", "dashboards", ".ci")


def own_files(root, *suffixes):
    """Files of the project in a fixed order, those in the root included; build trees are not entered."""
    found = [p for p in root.iterdir() if p.is_file()]
    for folder in FOLDERS:
        found += [p for p in (root / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return sorted(p for p in found if not suffixes or p.suffix in suffixes)


def text_of(path):
    return path.read_text(encoding="utf-8", errors="replace")


def lines_of(path):
    """(line number from 1, text) of every line."""
    return enumerate(text_of(path).splitlines(), start=1)


def includes(path):
    """(line number, name, quoted) of every #include."""
    for number, line in lines_of(path):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if match:
            yield number, match[2], match[1] == '"'


def main(lint):
    complaints = lint(ROOT)
    for complaint in complaints:
        print(complaint)
    print(f"{len(complaints)} complaints")
    sys.exit(1 if complaints else 0)
