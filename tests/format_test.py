#!/usr/bin/env python3
"""Every C++ and CUDA file is formatted as .clang-format says.

Versions of clang-format break lines at different places, so one is asked for: that of build/venv.

Usage: format_test.py --clang-format FILE [--mend]
--mend formats the files instead. Exit code 1: some are not formatted; they are named. 77: FILE is
missing, or of another version.
"""

import argparse
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "common", "examples", "job", "programs", "python", "server", "tests", "tools", "worker")
ENDINGS = {".cc", ".h", ".cu", ".cuh"}
VERSION = "14.0.6"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--clang-format", required=True, help=f"the program, of version {VERSION}")
    parser.add_argument("--mend", action="store_true", help="format the files")
    arguments = parser.parse_args()
    program = arguments.clang_format
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        said = "there is none"
    if f"version {VERSION}" not in said:
        print(f"format_test: needs clang-format {VERSION}, which tools/setup.sh puts into build/venv; {program}: {said.strip()}")
        sys.exit(77)
    files = [
        str(path)
        for folder in FOLDERS
        for path in sorted((SOURCE / folder).rglob("*"))
        if path.suffix in ENDINGS and "build" not in path.relative_to(SOURCE).parts
    ]
    if not files:
        sys.exit(f"format_test: no C++ files below {SOURCE}")
    how = ["-i"] if arguments.mend else ["--dry-run", "--Werror"]
    run = subprocess.run([program, *how, *files], capture_output=True, text=True, check=False)
    wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error:", run.stderr, re.MULTILINE)))
    for name in wrong:
        print(f"not formatted: {pathlib.Path(name).relative_to(SOURCE)}")
    if wrong:
        print(f"mend it with: {program} -i FILE, or all files with: tests/format_test.py --clang-format {program} --mend")
    elif run.returncode != 0:
        print(run.stderr)
    print(f"format_test: {len(files)} files, {len(wrong)} of which are not formatted")
    sys.exit(1 if run.returncode != 0 else 0)


if __name__ == "__main__":
    main()
