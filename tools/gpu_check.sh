#!/usr/bin/env bash
# Builds, on a machine with a GPU that may be lent for minutes and has no network,
# what runs on GPUs, and checks it on one GPU: tests, jobs in every mode, jobs that
# are killed, stopped and go on, scripts of PyTorch, kernels under compute-sanitizer,
# benchmarks. Installs nothing. Prints a row of the table as soon as a step ends.
#
# Two commands: the first one where a network is, the second one on that machine,
# to which this folder is taken along, DIR below it:
#   tools/gpu_check.sh --make-deps DIR
#   tools/gpu_check.sh --deps DIR --out OUT --budget 570
# What does not fit is left out, and the last lines say how to go on with it.
#
# Usage: tools/gpu_check.sh [--deps DIR] [--build DIR] [--out DIR] [--jobs N]
#                           [--budget SECONDS] [--only STEP[,STEP...]] [--no-build]
#                           [--cpu] [--dry-run]
#   --make-deps DIR   does nothing but fill DIR: Debian's or Ubuntu's packages that a
#                     build needs, unpacked, and which commit this is. If the packages
#                     are there, only the commit is written anew.
#   --deps DIR        builds with these, beside the libraries of the system
#   --build DIR       build folder; default: build/gpu-check
#   --out DIR         for table.txt and logs.tgz, which replace those that are there
#                     after each step; default: runs/gpu-check-TIME
#   --budget SECONDS  ends within this time. Steps are in the order of their value;
#                     one that takes longer than what is left is LEFT OUT.
#   --jobs N          of the compiler; default: the number of processors
#   --only STEPS      only these, in a build folder that has what they need
#   --no-build        without configure and build
#   --cpu             on the CPU what can be done there, to try the script
#   --dry-run         shows the steps, about how long they take, and which must PASS
# Exit code: 0 all rows that must be PASS are, and nothing was left out; 1 something
# failed; 2 wrong usage; 3 no GPU; 4 nothing failed, but something was left out, or
# skipped that must be PASS; 128 and the signal that has ended it.
set -euo pipefail
exec python3 -B "$(dirname "$0")/gpu_check/check.py" "$@"
