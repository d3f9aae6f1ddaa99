#!/usr/bin/env bash
# Sets up what is missing, builds, and runs every test. One command from nothing
# on Debian 12 or Ubuntu 22.04/24.04.
# Usage: tools/test.sh [--label unit|sim|net|e2e]... [--data-dir DIR]
# Without --label: all kinds. Tests on real data, which are in DIR/mnist and
# DIR/a9a, are skipped without --data-dir.
set -euo pipefail

labels=()
data_dir=""
while (($#)); do
  case "$1" in
    --label) labels+=("${2:?--label needs a kind: unit, sim, net or e2e}"); shift 2 ;;
    --data-dir) data_dir="$(realpath -e -- "${2:?--data-dir needs a folder}")" || exit 2; shift 2 ;;
    --help|-h) sed -n '2,6p' "$0" | cut -c3-; exit 0 ;;
    *) echo "test.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."

tools/setup.sh
cmake --preset release -DSLACKLINE_TEST_DATA_DIR="$data_dir"
cmake --build --preset release

filter=()
if ((${#labels[@]})); then
  filter=(--label-regex "^($(IFS='|'; echo "${labels[*]}"))$")
fi
# A few tests at a time: those with real processes run alone (RUN_SERIAL).
ctest --preset release --parallel "$(nproc)" "${filter[@]}"
