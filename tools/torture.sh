#!/usr/bin/env bash
# Kills, stops, starves and damages real jobs, in every mode, and checks that they
# come to their ends with what they promise. --help lists the flags.
# Usage: tools/torture.sh [--rounds N | --seconds S] [--seed S] [--round N] [--modes LIST] ...
set -euo pipefail
exec python3 "$(dirname "$0")/torture/torture.py" "$@"
