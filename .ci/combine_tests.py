# SPDX-License-Identifier: Apache-2.0
"""Makes one ctest folder out of several build trees, so that one run and one summary cover them all.
combine_tests.py OUT [PREFIX=TREE[?LABEL|LABEL...]]...
Takes the tests of TREE that have one of the labels (default: all) and puts PREFIX before their names."""
import json
import pathlib
import subprocess
import sys

# For every test: programs without sanitizers do not read them.
ENVIRONMENT = [
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0",
    "UBSAN_OPTIONS=print_stacktrace=1",
    "TSAN_OPTIONS=second_deadlock_stack=1",
]


# The sanitizers of g++ 12 and clang 14 cannot place their shadow memory where addresses are more random than this.
MOST_RANDOM_BITS = 28


def launcher():
    bits = pathlib.Path("/proc/sys/vm/mmap_rnd_bits")
    return ["setarch", "-R"] if bits.exists() and int(bits.read_text()) > MOST_RANDOM_BITS else []


def quoted(text):
    return f"[==[{text}]==]"


def cmake_value(value):
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    if isinstance(value, list):
        return quoted(";".join(str(v) for v in value))
    return quoted(value)


def tests_of(tree, labels):
    command = ["ctest", "--test-dir", str(tree), "--show-only=json-v1"]
    listing = subprocess.run(command, text=True, capture_output=True, check=True)
    for test in json.loads(listing.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        if not labels or labels & set(properties.get("LABELS", [])):
            yield test["name"], test.get("command"), properties


def main():
    out, *sources = sys.argv[1:]
    lines, names = [], set()
    for source in sources:
        prefix, rest = source.split("=", 1)
        tree, _, labels = rest.partition("?")
        tree = pathlib.Path(tree).resolve()
        count = 0
        for name, command, properties in tests_of(tree, set(filter(None, labels.split("|")))):
            name = prefix + name
            if command is None:
                sys.exit(f"{name}: its program was not built")
            if name in names:
                sys.exit(f"{name}: two tests of that name")
            names.add(name)
            count += 1
            if prefix:  # a tree with a sanitizer
                command = launcher() + command
            if "DEPENDS" in properties:
                properties["DEPENDS"] = [prefix + name for name in properties["DEPENDS"]]
            properties.setdefault("WORKING_DIRECTORY", str(tree))
            properties["ENVIRONMENT"] = properties.get("ENVIRONMENT", []) + ENVIRONMENT
            lines.append(f"add_test({quoted(name)} {' '.join(quoted(c) for c in command)})")
            values = " ".join(f"{key} {cmake_value(value)}" for key, value in properties.items())
            lines.append(f"set_tests_properties({quoted(name)} PROPERTIES {values})")
        if not count:
            sys.exit(f"{tree} has no test with a label of {labels or 'any kind'}")
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
