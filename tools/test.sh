#!/usr/bin/env bash
# Sets up what is missing, builds, and runs every test. One command from nothing
# on Debian 12 or Ubuntu 22.04/24.04.
# Usage: tools/test.sh [--label unit|sim|net|gpu|e2e]... [--data-dir DIR]
# Without --label: all kinds. Tests of kind gpu exist where CUDA is installed, and
# are skipped where there is no GPU. Tests on real data, which are in DIR/mnist and
# DIR/a9a, are skipped without --data-dir.
set -euo pipefail

labels=()
data_dir=""
while (($#)); do
  case "$1" in
    --label)
      labels+=("${2:?--label needs a kind: unit, sim, net, gpu or e2e}")
      [[ $2 =~ ^(unit|sim|net|gpu|e2e)$ ]] || { echo "test.sh: --label: '$2' is no kind; see --help" >&2; exit 2; }
      shift 2
      ;;
    --data-dir) data_dir="$(realpath -e -- "${2:?--data-dir needs a folder}")" || exit 2; shift 2 ;;
    --help|-h) sed -n '2,7p' "$0" | cut -c3-; exit 0 ;;
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
if ! ctest --preset release -N --label-regex '^gpu$' | grep 'Test *#' >/dev/null; then
  echo "test.sh: CUDA is not installed, so there are no tests of kind gpu" >&2
fi
# A few tests at a time: those with real processes run alone (RUN_SERIAL).
ctest --preset release --parallel "$(nproc)" "${filter[@]}"
