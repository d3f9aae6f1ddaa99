#!/usr/bin/env python3
"""No folder includes upward, and no folders include or import each other in a circle.

ORDER says which folders stand above which (docs/ARCHITECTURE.md). A file may include its own
folder and those below it, not one beside or above it. Nor may folders of one of these, at any
depth, include each other in a circle, and neither may the subpackages of the Python package import
each other in one. Modules of the package that are in no subpackage stand together.

Usage: folders_test.py [--source DIR] [--self-test]
Exit code 1: a file includes what it must not; the lines name it and what it includes.
"""

import argparse
import ast
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
PACKAGE = pathlib.PurePosixPath("python/slackline")
COMPILED = "_core"  # Imports nothing.
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


def imports(source):
    """Pairs of a module of the Python package and what it imports of the package, as paths without ".py"."""
    for path in sorted((source / PACKAGE).rglob("*.py")):
        name = path.relative_to(source).with_suffix("")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                # What is named may be a module or something in one.
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for module in modules:
                parts = module.split(".")
                if parts[0] == PACKAGE.name and len(parts) > 1:
                    yield name, PACKAGE.joinpath(*parts[1:])


def subpackage(module, source):
    """The folder in the package that the module is in; the package itself if it is in none."""
    name = module.relative_to(PACKAGE).parts[0]
    return PACKAGE.joinpath(name if name == COMPILED or (source / PACKAGE / name).is_dir() else "").as_posix()


def edges_of_includes(pairs):
    """For each folder those that it includes, of the same top folder, each with a line that says where."""
    below = {}
    for name, included in pairs:
        own, other = name.parent.as_posix(), included.parent.as_posix()
        if own != other and name.parts[0] == included.parts[0]:
            below.setdefault(own, {}).setdefault(other, f"{name} includes {included}")
    return below


def edges_of_imports(source):
    """As edges_of_includes(), of subpackages."""
    below = {}
    for name, imported in imports(source):
        # The package's own module says what of it is public, and nothing inside of it uses that.
        own, other = subpackage(name, source), subpackage(imported, source)
        if own != other and name.name != "__init__":
            below.setdefault(own, {}).setdefault(other, f"{name}.py imports {imported}")
    return below


def circles(below):
    """Sets of folders that reach each other: the strongly connected components of more than one folder."""

    def reached(folder):
        seen, queue = set(), [folder]
        while queue:
            for other in below.get(queue.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return seen

    reach = {folder: reached(folder) for folder in below}
    found = {frozenset(other for other in reach[own] if own in reach.get(other, ())) for own in below}
    return sorted(tuple(sorted(folders)) for folders in found if folders)


def lines_of(circle, below):
    """Who includes whom in the circle."""
    yield "these folders include each other in a circle: " + ", ".join(circle)
    for own in circle:
        for other in circle:
            if other in below.get(own, ()):
                yield f"  {below[own][other]}"


def lines_of_circles(below):
    """For each circle, who includes whom in it."""
    return [line for circle in circles(below) for line in lines_of(circle, below)]


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
            "common/net/net.h": "",
            "common/net/all.cc": '#include "common/net/tcp/tcp.h"\n',
            "common/net/tcp/tcp.h": '#include "common/net/net.h"\n',
            "common/high.cc": '#include "job/job.h"\n',
            "tests/one.cc": '#include "benchmarks/two.h"\n',
            "benchmarks/two.h": '#include "tests/one.h"\n',
            "worker/main.cc": '#include "server/a/one.h"\n',
            "job/job.h": '#include "worker/main.h"\n#include "server/a/one.h"\n',
            "python/slackline/__init__.py": "from slackline._job import Job\n",
            "python/slackline/_job.py": "import math\nfrom slackline._loop.steps import Steps\n",
            "python/slackline/_files.py": "from slackline import _core\n",
            "python/slackline/_loop/steps.py": "from slackline import _core, _files\n",
            "python/slackline/_optim/rules.py": "from slackline._optim import optimizer\n",
            "python/slackline/_optim/optimizer.py": "from slackline._data import loader\n",
            "python/slackline/_data/loader.py": "from slackline._optim import rules\n",
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
        assert lines_of_circles(edges_of_includes(pairs)) == [
            "these folders include each other in a circle: common/net, common/net/tcp",
            "  common/net/all.cc includes common/net/tcp/tcp.h",
            "  common/net/tcp/tcp.h includes common/net/net.h",
            "these folders include each other in a circle: server/a, server/b, server/c",
            "  server/a/one.h includes server/b/two.h",
            "  server/b/two.h includes server/c/three.h",
            "  server/c/three.h includes server/a/one.h",
        ], lines_of_circles(edges_of_includes(pairs))
        assert lines_of_circles(edges_of_imports(source)) == [
            "these folders include each other in a circle: python/slackline, python/slackline/_loop",
            "  python/slackline/_job.py imports python/slackline/_loop/steps/Steps",
            "  python/slackline/_loop/steps.py imports python/slackline/_files",
            "these folders include each other in a circle: python/slackline/_data, python/slackline/_optim",
            "  python/slackline/_data/loader.py imports python/slackline/_optim/rules",
            "  python/slackline/_optim/optimizer.py imports python/slackline/_data/loader",
        ], lines_of_circles(edges_of_imports(source))


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
    wrong = upward(pairs)
    for below in (edges_of_includes(pairs), edges_of_imports(arguments.source)):
        wrong += lines_of_circles(below)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
