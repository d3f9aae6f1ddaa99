#!/usr/bin/env bash
# Sets up what is missing, builds, and runs every test. One command from nothing
# on Debian 12 or Ubuntu 22.04/24.04.
# Usage: tools/test.sh [--label unit|sim|net|e2e]...   (default: all kinds)
set -euo pipefail
cd "$(dirname "$0")/.."

labels=()
while (($#)); do
  case "$1" in
    --label) labels+=("${2:?--label needs a kind: unit, sim, net or e2e}"); shift 2 ;;
    --help|-h) sed -n '2,4p' "$0" | cut -c3-; exit 0 ;;
    *) echo "test.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done

tools/setup.sh
cmake --preset release
cmake --build --preset release

filter=()
if ((${#labels[@]})); then
  filter=(--label-regex "^($(IFS='|'; echo "${labels[*]}"))$")
fi
# A few tests at a time: those with real processes run alone (RUN_SERIAL).
ctest --preset release --parallel "$(nproc)" "${filter[@]}"
