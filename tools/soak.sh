#!/usr/bin/env bash
# One job of a million small steps while shards move, the mode changes and processes
# are killed: does it stay flat? --help lists the flags.
# Usage: tools/soak.sh [--out DIR] [--steps N] [--every SECONDS] [--seed S]
set -euo pipefail
exec python3 "$(dirname "$0")/torture/soak.py" "$@"
