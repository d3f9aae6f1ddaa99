#!/usr/bin/env python3
"""Each case of a test program that several tests share is in one of these tests.

CTest knows them by filters, which are made of what the sources look like. A case that no
filter has would never run, and nobody would see it.

Usage: every_case_test.py --build DIR
DIR is a build folder whose programs are built. Exit code 1: a case is in no test; it is named.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys

FILTER = "--gtest_filter="


def cases(*command):
    """The names of the cases that a program has, or that a filter leaves."""
    listed = subprocess.run([*command, "--gtest_list_tests"], capture_output=True, text=True, check=True)
    suite, found = "", set()
    for line in listed.stdout.splitlines():
        name = line.split("  #")[0].rstrip()
        if line.startswith("  "):
            found.add(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, type=pathlib.Path, help="a build folder")
    build = parser.parse_args().build
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, capture_output=True, text=True, check=True)
    filters = collections.defaultdict(set)
    for test in json.loads(shown.stdout)["tests"]:
        program, *arguments = test.get("command", [""])
        if "_tests_" in pathlib.Path(program).name and arguments and arguments[0].startswith(FILTER):
            filters[program].add(arguments[0])
    if not filters:
        sys.exit(f"every_case_test: no test of {build} shares its program with another")
    lost = []
    count = 0
    for program, its_filters in sorted(filters.items()):
        every = cases(program)
        count += len(every)
        run = set().union(*(cases(program, one) for one in its_filters))
        lost += [f"{pathlib.Path(program).name}: {case}" for case in sorted(every - run)]
    print(f"every_case_test: {count} cases in {len(filters)} programs, {len(lost)} of which are in no test", *lost, sep="\n")
    sys.exit(1 if lost or count == 0 else 0)


if __name__ == "__main__":
    main()
