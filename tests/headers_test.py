#!/usr/bin/env python3
"""Every header of the product compiles alone.

A header alone in a file would be parsed with all that it includes: 330 files of up to
five seconds. So headers share a file in a chain: each includes (through others) all that
the ones before it do. What stands before a header in its file is then what the header
brings with it anyway, and the file compiles only if each of its headers does alone. For the
same reason a file may begin with a precompiled header (BASES): one whose headers the first of
its chain includes itself. Most of what is parsed is in there.

Usage: headers_test.py --build DIR [--jobs N] [--cuda]
DIR is a configured build folder with compile_commands.json: its flags say where headers are.
The compiler is clang where it is installed, else that of the build: of a precompiled header
g++ reads everything, and instantiates all templates that its inline functions use, which
is most of what it does for a header here (583 processor seconds in all; clang: 330).
Exit code 1: a header does not compile alone; the compiler's lines name it.
"""

import argparse
import concurrent.futures
import functools
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("common", "job", "programs", "python", "server", "tools", "worker")
# From the most expensive on; each chain takes the first one that its first header includes all of.
BASES = (
    ("CLI/CLI.hpp",),
    ("proto/wire.pb.h", "proto/cluster.pb.h"),
    ("proto/cluster.pb.h", "absl/status/statusor.h"),
    ("proto/control.pb.h",),
    ("proto/wire.pb.h",),
    ("proto/cluster.pb.h",),
    ("proto/run.pb.h",),
    ("proto/view.pb.h",),
    ("absl/status/statusor.h", "absl/time/time.h"),
    ("absl/status/statusor.h",),
    ("absl/status/status.h",),
    ("string",),
)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)


def headers():
    """All of them, but parts of files, which are included many times (*-inl.h)."""
    found = {}
    for folder in FOLDERS:
        for path in (SOURCE / folder).rglob("*.h"):
            name = path.relative_to(SOURCE).as_posix()
            if not name.endswith("-inl.h"):
                found[name] = set(INCLUDE.findall(path.read_text()))
    return found


def closures(found):
    """Of each header: itself and all that it includes, through ours."""

    @functools.cache
    def closure(name):
        return frozenset({name}).union(*(closure(included) for included in found.get(name, ())))

    return {name: closure(name) for name in found}


def chains(closure):
    """The headers in lists, each header's closure a superset of the one before it.

    From the largest closure down; a header goes where the file stays shortest."""
    lists = []
    for name in sorted(closure, key=lambda name: (-len(closure[name]), name)):
        fitting = [chain for chain in lists if closure[name] <= closure[chain[0]]]
        if fitting:
            min(fitting, key=lambda chain: len(closure[chain[0]])).insert(0, name)
        else:
            lists.append([name])
    return lists


def flags(build):
    """The compiler of the build, and what its C++ sources are given to find headers."""
    compiler, kept = None, {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if entry["file"].endswith((".cu", ".c")) or "/tests/" in entry["file"]:
            continue
        compiler = words[0]
        position = 1
        while position < len(words):
            word = words[position]
            if word in ("-I", "-isystem"):
                kept[(word, words[position + 1])] = None
                position += 1
            elif word.startswith(("-I", "-D", "-std=")):
                kept[(word,)] = None
            position += 1
    return compiler, [word for words in kept for word in words]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, type=pathlib.Path, help="a configured build folder")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time; default: 2")
    parser.add_argument("--cuda", action="store_true", help="with those that include CUDA's, which are there")
    arguments = parser.parse_args()

    found = headers()
    compiler, options = flags(arguments.build)
    if not found or compiler is None:
        sys.exit(f"headers_test: no headers below {SOURCE}, or no C++ source in {arguments.build}")
    closure = closures(found)
    if not arguments.cuda:
        closure = {name: names for name, names in closure.items() if not any("cuda" in other for other in names)}
    work = arguments.build / "headers"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    clang = shutil.which("clang++")
    usual = clang or compiler

    def run(words):
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def precompile(base):
        file = work / ("base_" + base[0].replace("/", "_") + f"_{len(base)}.h")
        file.write_text("".join(f"#include <{name}>\n" for name in base))
        instantiate = ["-fpch-instantiate-templates"] if clang else []
        return base, file, run([usual, *options, *instantiate, "-x", "c++-header", str(file), "-o", f"{file}.gch"])

    def compile_chain(chain):
        file = work / (chain[-1].replace("/", "_") + ".cc")
        file.write_text("".join(f'#include "{name}"\n' for name in chain))
        # LibTorch 1.13's are not for this clang.
        if any(name.startswith(("torch/", "ATen/")) for name in closure[chain[-1]]):
            return chain, run([compiler, *options, "-fsyntax-only", str(file)])
        base = next((path for base, path in bases.items() if closure[chain[0]].issuperset(base)), None)
        if base is None:
            include = []
        else:
            include = ["-include-pch", f"{base}.gch"] if clang else ["-Winvalid-pch", "-include", str(base)]
        return chain, run([usual, *options, *include, "-fsyntax-only", str(file)])

    lists = chains(closure)
    failed = 0
    bases = {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for base, path, made in pool.map(precompile, BASES):
            if made.returncode != 0:
                sys.exit(f"headers_test: {' '.join(base)} cannot be precompiled:\n{made.stderr}")
            bases[base] = path
        for chain, compiled in pool.map(compile_chain, lists):
            if compiled.returncode != 0:
                failed += 1
                print(f"one of these headers does not compile alone: {' '.join(chain)}\n{compiled.stderr}")
    # They are hundreds of megabytes.
    for path in bases.values():
        pathlib.Path(f"{path}.gch").unlink()
    print(f"headers_test: {len(closure)} headers in {len(lists)} files, {failed} of which do not compile")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
