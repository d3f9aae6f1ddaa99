#!/usr/bin/env python3
"""No folder includes upward, and no folders of the server or the worker include each other in a circle.

ORDER says which folders stand above which (docs/ARCHITECTURE.md). A file may include its own
folder and those below it, not one beside or above it.

Usage: folders_test.py [--source DIR] [--self-test]
Exit code 1: a file includes what it must not; the lines name it and what it includes.
"""

import argparse
import pathlib
import re
import sys
import tempfile

# From below to above. Folders in one line stand beside each other.
ORDER = (
    ("proto",),
    ("common",),
    ("server", "worker"),
    ("job",),
    ("programs",),
    ("tools", "python"),
    ("tests", "benchmarks"),
)
# Nothing of the product is in these; they may use each other.
PROOFS = set(ORDER[-1])
# No circles between the folders in these.
WITHOUT_CIRCLES = ("server", "worker")
LEVELS = {folder: level for level, folders in enumerate(ORDER) for folder in folders}
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def includes(source):
    """Pairs of a file and what it includes of the tree, as paths from its root."""
    for top in LEVELS:
        for path in sorted((source / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            name = path.relative_to(source)
            for included in INCLUDE.findall(path.read_text()):
                if included.split("/")[0] in LEVELS:
                    yield name, pathlib.PurePosixPath(included)


def upward(pairs):
    """Lines that name who includes a folder that is not below its own."""
    lines = []
    for name, included in pairs:
        own, other = name.parts[0], included.parts[0]
        if own != other and LEVELS[other] >= LEVELS[own] and not {own, other} <= PROOFS:
            lines.append(f"{name}: includes {included}, and {other}/ is not below {own}/")
    return lines


def circles(pairs):
    """Lines that name folders which include each other, perhaps through others."""
    below = {}
    for name, included in pairs:
        if name.parts[0] not in WITHOUT_CIRCLES or included.parts[0] != name.parts[0]:
            continue
        own, other = name.parent.as_posix(), included.parent.as_posix()
        if own != other:
            below.setdefault(own, {}).setdefault(other, f"{name} includes {included}")

    def reached(folder):
        seen, queue = set(), [folder]
        while queue:
            for other in below.get(queue.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return seen

    return [
        f"{own}/ and {other}/ include each other: {why}"
        for own in sorted(below)
        for other, why in sorted(below[own].items())
        if own in reached(other)
    ]


def self_test():
    """Each rule finds what it is there for."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder)
        files = {
            "server/a/one.h": '#include "server/b/two.h"\n#include "common/low.h"\n',
            "server/b/two.h": '#include "server/c/three.h"\n',
            "server/c/three.h": '#include "server/a/one.h"\n',
            "server/d/alone.cc": '#include "server/a/one.h"\n',
            "common/low.h": '#include "proto/wire.pb.h"\n#include <server>\n',
            "common/high.cc": '#include "job/job.h"\n',
            "tests/one.cc": '#include "benchmarks/two.h"\n',
            "benchmarks/two.h": '#include "tests/one.h"\n',
            "worker/main.cc": '#include "server/a/one.h"\n',
            "job/job.h": '#include "worker/main.h"\n#include "server/a/one.h"\n',
        }
        for name, text in files.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        pairs = list(includes(source))
        assert upward(pairs) == [
            "common/high.cc: includes job/job.h, and job/ is not below common/",
            "worker/main.cc: includes server/a/one.h, and server/ is not below worker/",
        ], upward(pairs)
        assert [line.split(":")[0] for line in circles(pairs)] == [
            "server/a/ and server/b/ include each other",
            "server/b/ and server/c/ include each other",
            "server/c/ and server/a/ include each other",
        ], circles(pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true", help="that the rules find what they are there for")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return 0
    pairs = list(includes(arguments.source))
    if not pairs:
        print(f"{arguments.source}: there are no sources", file=sys.stderr)
        return 1
    wrong = upward(pairs) + circles(pairs)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
