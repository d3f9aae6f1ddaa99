#!/usr/bin/env python3
"""Clang-tidy has nothing to say about the product: the checks of .clang-tidy find faults, not tastes.

Most of the time goes into headers of libraries, which clang-tidy reads again for each file that it is
given. So the sources of a folder are looked at as one file, after the precompiled header of the build;
where two of them have one name in anonymous namespaces, or a macro of one changes another, that folder's
sources are looked at as the build compiles them.

Usage: tidy_test.py --build DIR [--jobs N] [FOLDER...]
DIR is a build by clang of the same version as clang-tidy, with compile_commands.json and the precompiled
headers made. Without folders: all of the product. tools/lint.sh looks at single files.
Exit code 1: something was found; clang-tidy's lines name the file. 77: there is no clang-tidy.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("common", "job", "programs", "server", "tools", "worker")
INCLUDED = re.compile(r'^#include "([^"]+\.cc)"$', re.MULTILINE)
# Clang 14 does not take LibTorch 1.13's modules for C++20.
NOT_FOR_CLANG = '#include "worker/model/network.h"'
# Options of g++ that clang does not know are no warnings here.
ARGUMENTS = ("--quiet", "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-unused-command-line-argument")


def sources_of(file, build):
    """Relative to the checkout, of what the build compiles as one; empty if it is no part of the product."""
    if file.is_relative_to(build):
        names = INCLUDED.findall(file.read_text())
    else:
        names = [file.relative_to(SOURCE).as_posix()] if file.is_relative_to(SOURCE) else []
    return [name for name in names if name.startswith(tuple(folder + "/" for folder in FOLDERS))]


def units(build):
    """What the build compiles: the command without its output and file, and the sources in it."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        if file.suffix != ".cc" or not file.exists():
            continue
        sources = sources_of(file, build)
        if sources:
            yield entry["directory"], entry["command"].rsplit(" -o ", 1)[0], sources


def version_of(program):
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+\.\d+\.\d+)", said)
    return found.group(1) if found else said


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", required=True, type=pathlib.Path, help="a configured build folder")
    parser.add_argument("--jobs", type=int, default=2, help="clang-tidy at a time; default: 2")
    parser.add_argument("folders", nargs="*", help="as common/net; default: all")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    compiled = list(units(build))
    tidy = shutil.which("clang-tidy")
    if tidy is None:
        print("tidy_test: there is no clang-tidy; tools/setup.sh --clang installs it")
        sys.exit(77)
    # One reads what the other has precompiled.
    if compiled and version_of(tidy) != version_of(compiled[0][1].split()[0]):
        print(f"tidy_test: {tidy} is of version {version_of(tidy)}, and the build by {compiled[0][1].split()[0]} is not")
        sys.exit(77)
    work = build / "tidy"
    shutil.rmtree(work, ignore_errors=True)

    # By folder, and among those by the options that they are compiled with.
    groups = collections.defaultdict(list)
    left_out = []
    for directory, command, sources in compiled:
        if any(NOT_FOR_CLANG in (SOURCE / name).read_text() for name in sources):
            left_out += sources
            continue
        folder = str(pathlib.PurePath(sources[0]).parent)
        if not arguments.folders or folder.startswith(tuple(arguments.folders)):
            groups[(folder, directory, command)].append(sources)
    if not groups:
        sys.exit(f"tidy_test: {build} compiles nothing of {arguments.folders or 'the product'}")

    def look(name, directory, command, sources):
        place = work / name
        place.mkdir(parents=True)
        file = place / "unit.cc"
        file.write_text("".join(f'#include "{source}"\n' for source in sources))
        words = {"directory": directory, "command": f"{command} -c {file}", "file": str(file)}
        (place / "compile_commands.json").write_text(json.dumps([words]))
        run = subprocess.run(
            [tidy, "-p", str(place), f"--config-file={SOURCE}/.clang-tidy", *ARGUMENTS, str(file)],
            capture_output=True, text=True, check=False,
        )
        return run.returncode, run.stdout

    def look_at_group(number, group):
        (folder, directory, command), lists = group
        name = f"{number}_{folder.replace('/', '_')}"
        every = sum(lists, [])
        code, said = look(name, directory, command, every)
        # What does not compile as one may do so apart.
        if "[clang-diagnostic-error]" in said and len(lists) > 1:
            looks = [look(f"{name}_{part}", directory, command, sources) for part, sources in enumerate(lists)]
            code, said = max(code for code, _ in looks), "".join(said for _, said in looks)
        return len(every), code, said

    failed, count = 0, 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        # The largest first.
        order = sorted(groups.items(), key=lambda group: -sum(map(len, group[1])))
        for looked_at, code, said in pool.map(look_at_group, range(len(order)), order):
            count += looked_at
            if code != 0:
                failed += 1
                print(said)
    shutil.rmtree(work)
    print(f"tidy_test: {count} sources in {len(groups)} groups, {failed} of which have findings; "
          f"left out, since clang does not read LibTorch's modules: {len(set(left_out))}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
