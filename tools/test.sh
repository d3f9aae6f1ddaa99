#!/usr/bin/env bash
# Sets up what is missing, builds, and runs every test. One command from nothing
# on Debian 12 or Ubuntu 22.04/24.04.
# Usage: tools/test.sh [--label unit|sim|net|gpu|e2e|asan|fuzz|tsan]... [--data-dir DIR] [--werror]
# Without --label: all kinds. Tests of kind gpu exist where CUDA is installed, and
# are skipped where there is no GPU. Tests on real data, which are in DIR/mnist and
# DIR/a9a, are skipped without --data-dir. asan and tsan: tests of the other kinds,
# in builds with sanitizers. Fuzzers run for 10 s each. --werror: warnings of the
# release build are errors, as clang's are in any case; for the g++ that CI has.
set -euo pipefail

labels=()
data_dir=""
werror=OFF
while (($#)); do
  case "$1" in
    --label)
      labels+=("${2:?--label needs a kind: unit, sim, net, gpu, e2e, asan, fuzz or tsan}")
      [[ $2 =~ ^(unit|sim|net|gpu|e2e|asan|fuzz|tsan)$ ]] || { echo "test.sh: --label: '$2' is no kind; see --help" >&2; exit 2; }
      shift 2
      ;;
    --data-dir) data_dir="$(realpath -e -- "${2:?--data-dir needs a folder}")" || exit 2; shift 2 ;;
    --werror) werror=ON; shift ;;
    --help|-h) sed -n '2,9p' "$0" | cut -c3-; exit 0 ;;
    *) echo "test.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."

# Those of the given kinds that are asked for, as a regular expression.
wanted() {
  local kind found=""
  for kind in "$@"; do
    if ((${#labels[@]} == 0)) || [[ " ${labels[*]} " == *" $kind "* ]]; then found+="|$kind"; fi
  done
  [[ -z $found ]] || echo "^(${found#|})$"
}

# run PRESET LABELS [CMAKE-OPTION...]: one test for each core at a time; those that
# others would disturb run alone (RUN_SERIAL).
run() {
  cmake --preset "$1" "${@:3}"
  cmake --build --preset "$1"
  ctest --preset "$1" --parallel "$(nproc)" --label-regex "$2"
}

release="$(wanted unit sim net gpu e2e)"
asan="$(wanted asan fuzz)"
tsan="$(wanted tsan)"

tools/setup.sh
if [[ -n $asan ]]; then tools/setup.sh --clang || true; fi

if [[ -n $release ]]; then
  run release "$release" -DSLACKLINE_TEST_DATA_DIR="$data_dir" -DSLACKLINE_WERROR="$werror"
  if ! ctest --preset release -N --label-regex '^gpu$' | grep 'Test *#' >/dev/null; then
    echo "test.sh: CUDA is not installed, so there are no tests of kind gpu" >&2
  fi
fi
if [[ -n $tsan ]]; then run tsan "$tsan"; fi
if [[ -n $asan ]]; then
  if command -v clang++ >/dev/null; then
    run asan "$asan"
  else
    echo "test.sh: there is no clang++, so tests of kind asan and fuzz are SKIPPED" >&2
  fi
fi
