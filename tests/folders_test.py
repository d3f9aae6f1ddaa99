#!/usr/bin/env python3
"""No folder includes upward, and neither folders nor files include or import each other in a circle.

ORDER says which folders stand above which (docs/ARCHITECTURE.md). A file may include its own
folder and those below it, not one beside or above it. Nor may folders of one of these, at any
depth, include each other in a circle, and neither may the subpackages of the Python package import
each other in one. Modules of the package that are in no subpackage stand together. Nor may the files
of one folder of the product, a header and its source taken as one: CIRCLES has those that do today, and
gets no new ones.

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
    ("tests",),
    ("benchmarks",),
)
# Nothing of the product is in these.
PROOFS = {"tests", "benchmarks"}
PACKAGE = pathlib.PurePosixPath("python/slackline")
COMPILED = "_core"  # Imports nothing.
LEVELS = {folder: level for level, folders in enumerate(ORDER) for folder in folders}
# Files of one folder that include each other in a circle. To be ended, not added to.
CIRCLES = {
    ("common/checkpoint/best_checkpoint", "common/checkpoint/checkpoint_folder"),
    ("common/config/cluster_checks", "common/config/cluster_config", "common/config/overrides"),
    ("common/net/shm/shm_channel", "common/net/shm/shm_listener", "common/net/shm/shm_transport"),
    ("common/optim/stale/formula", "common/optim/stale/stale_rule"),
    ("worker/session/group_round", "worker/session/session", "worker/session/session_life"),
}
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
        if own != other and LEVELS[other] >= LEVELS[own]:
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


def unit(name):
    """A file without its ending: a header and its source are one."""
    return re.sub(r"(-inl)?\.\w+$", "", name.as_posix())


def edges_of_units(pairs):
    """As edges_of_includes(), of the files of one folder of the product."""
    below = {}
    for name, included in pairs:
        own, other = unit(name), unit(included)
        if own != other and name.parent == included.parent and name.parts[0] not in PROOFS:
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
    """Those that reach each other: the strongly connected components of more than one."""

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
    yield "these include each other in a circle: " + ", ".join(circle)
    for own in circle:
        for other in circle:
            if other in below.get(own, ()):
                yield f"  {below[own][other]}"


def lines_of_circles(below, known=frozenset()):
    """For each circle that is not known, who includes whom in it; and what is known, and is none any more."""
    found = circles(below)
    return [line for circle in found if circle not in known for line in lines_of(circle, below)] + [
        "CIRCLES has a circle that is none any more, take it out: " + ", ".join(circle)
        for circle in sorted(known - set(found))]


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
            "benchmarks/two.h": '#include "tests/two.h"\n',
            "worker/main.cc": '#include "server/a/one.h"\n',
            "worker/a/one.h": "",
            "worker/a/one.cc": '#include "worker/a/one.h"\n#include "worker/a/two.h"\n',
            "worker/a/two.h": "",
            "worker/a/two-inl.h": '#include "worker/a/two.h"\n#include "worker/a/one.h"\n',
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
            "tests/one.cc: includes benchmarks/two.h, and benchmarks/ is not below tests/",
        ], upward(pairs)
        assert lines_of_circles(edges_of_includes(pairs)) == [
            "these include each other in a circle: common/net, common/net/tcp",
            "  common/net/all.cc includes common/net/tcp/tcp.h",
            "  common/net/tcp/tcp.h includes common/net/net.h",
            "these include each other in a circle: server/a, server/b, server/c",
            "  server/a/one.h includes server/b/two.h",
            "  server/b/two.h includes server/c/three.h",
            "  server/c/three.h includes server/a/one.h",
        ], lines_of_circles(edges_of_includes(pairs))
        circle = ("worker/a/one", "worker/a/two")
        units = [
            "these include each other in a circle: worker/a/one, worker/a/two",
            "  worker/a/one.cc includes worker/a/two.h",
            "  worker/a/two-inl.h includes worker/a/one.h",
        ]
        below = edges_of_units(pairs)
        assert lines_of_circles(below) == units, lines_of_circles(below)
        assert not lines_of_circles(below, {circle})
        assert lines_of_circles(below, {("worker/a/gone", "worker/a/two")}) == units + [
            "CIRCLES has a circle that is none any more, take it out: worker/a/gone, worker/a/two"]
        assert lines_of_circles(edges_of_imports(source)) == [
            "these include each other in a circle: python/slackline, python/slackline/_loop",
            "  python/slackline/_job.py imports python/slackline/_loop/steps/Steps",
            "  python/slackline/_loop/steps.py imports python/slackline/_files",
            "these include each other in a circle: python/slackline/_data, python/slackline/_optim",
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
    wrong += lines_of_circles(edges_of_units(pairs), CIRCLES)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
