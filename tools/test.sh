#!/usr/bin/env bash
# Sets up what is missing, builds, and runs every test. One command from nothing
# on Debian 12 or Ubuntu 22.04/24.04.
# Usage: tools/test.sh [--label unit|sim|net|gpu|e2e|cluster|asan|fuzz|tsan]... [--data-dir DIR] [--werror]
# Without --label: all kinds. Tests of kind gpu exist where CUDA is installed, and
# are skipped where there is no GPU; those of kind cluster are skipped where sshd or
# Slurm is missing. Tests on real data, which are in DIR/mnist and DIR/a9a, are skipped without
# --data-dir. asan and tsan: tests of the other kinds, in builds with sanitizers.
# Where both are run, tests of kind unit run with AddressSanitizer alone.
# Fuzzers run for 10 s each. --werror: warnings of the release build are errors, as
# clang's are in any case; for the g++ that CI has.
# Exit status 1: a test has failed; those of the other builds have run as well.
set -euo pipefail

labels=()
data_dir=""
werror=OFF
while (($#)); do
  case "$1" in
    --label)
      labels+=("${2:?--label needs a kind: unit, sim, net, gpu, e2e, cluster, asan, fuzz or tsan}")
      [[ $2 =~ ^(unit|sim|net|gpu|e2e|cluster|asan|fuzz|tsan)$ ]] || { echo "test.sh: --label: '$2' is no kind; see --help" >&2; exit 2; }
      shift 2
      ;;
    --data-dir) data_dir="$(realpath -e -- "${2:?--data-dir needs a folder}")" || exit 2; shift 2 ;;
    --werror) werror=ON; shift ;;
    --help|-h) sed '1d; /^#/!Q; s/^# \?//' "$0"; exit 0 ;;
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

# build PRESET [CMAKE-OPTION...]
build() { cmake --preset "$1" "${@:2}" && cmake --build --preset "$1"; }

# check PRESET LABELS: three tests for each two cores at a time, since those of whole jobs
# wait for half of theirs; those that others would disturb run alone (RUN_SERIAL). With
# more, jobs miss deadlines of seconds, and what a build aside leaves undone is done later.
failed=0
check() {
  mkdir -p build
  ctest --preset "$1" --parallel "$((($(nproc) * 3 + 1) / 2))" --label-regex "$2" | tee "build/ctest-$1.log" || failed=1
}

# The next slow test shall be seen by whoever makes it. How long each kind took is in
# ctest's own lines, "Label Time Summary".
report() {
  local logs=()
  for preset in release tsan asan; do
    if [[ -e build/ctest-$preset.log ]]; then logs+=("build/ctest-$preset.log"); fi
  done
  if ((${#logs[@]} == 0)); then return; fi
  echo
  echo "slowest tests, in seconds:"
  sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) [. ]*(\*\*\*)?[A-Za-z]+ +([0-9.]+) sec.*/\3 \1/p' "${logs[@]}" |
    sort -rn | awk 'NR <= 10 { printf "%8.1f  %s\n", $1, $2 }'
  echo "in all: $((SECONDS / 60)) min $((SECONDS % 60)) s; the times of each kind stand above, behind each build's tests"
}
rm -f build/ctest-{release,tsan,asan}.log

release="$(wanted unit sim net gpu e2e cluster)"
asan="$(wanted asan fuzz)"
tsan="$(wanted tsan)"

tools/setup.sh
# Without them these tests are skipped, and say so.
if [[ -n $(wanted cluster) ]]; then tools/setup.sh --cluster || true; fi
if [[ -n $asan ]]; then tools/setup.sh --clang || true; fi

sanitized=()
if [[ -n $tsan ]]; then sanitized+=(tsan); fi
if [[ -n $asan ]]; then
  if command -v clang++ >/dev/null; then
    sanitized+=(asan)
  else
    echo "test.sh: there is no clang++, so tests of kind asan and fuzz are SKIPPED" >&2
    asan=""
  fi
fi

# build_aside PRESET...: in the background, with what the tests leave of the cores.
# The processes of a job have sessions of their own, and Linux shares the cores
# among sessions first: this one has the lowest priority of these, too.
aside=""
build_aside() {
  mkdir -p build
  # shellcheck disable=SC2016 # The inner shell expands it.
  setsid nice -n 19 bash -c '
    { echo 19 >/proc/self/autogroup; } 2>/dev/null
    for preset; do cmake --preset "$preset" && cmake --build --preset "$preset" --parallel "$(nproc)" || exit 1; done
  ' build_aside "$@" >build/aside.log 2>&1 &
  aside=$!
  trap stop_aside EXIT
}
# What is missing is for whoever builds next. Says what the compilers have said.
stop_aside() {
  trap - EXIT
  kill -- "-$aside" 2>/dev/null || true
  wait "$aside" || true
  while kill -0 -- "-$aside" 2>/dev/null; do sleep 0.1; done
  cat build/aside.log
}

# What the tests with AddressSanitizer and the fuzzers show, those of kind unit need not
# show once more.
once=OFF
if [[ -n $asan && -n $(wanted asan) && -n $(wanted fuzz) && -n $(wanted unit) ]]; then once=ON; fi
if [[ -n $release ]]; then
  build release -DSLACKLINE_TEST_DATA_DIR="$data_dir" -DSLACKLINE_WERROR="$werror" -DSLACKLINE_UNIT_TESTS_ELSEWHERE="$once"
  if ! ctest --preset release -N --label-regex '^gpu$' | grep 'Test *#' >/dev/null; then
    echo "test.sh: CUDA is not installed, so there are no tests of kind gpu" >&2
  fi
  if ((${#sanitized[@]})); then build_aside "${sanitized[@]}"; fi
  check release "$release"
fi
if [[ -n $aside ]]; then stop_aside; fi
for preset in "${sanitized[@]}"; do build "$preset"; done
if [[ $once == ON ]]; then
  there="$(ctest --preset asan -N)"
  while read -r test; do
    grep -q ": $test$" <<<"$there" || { echo "test.sh: $test runs in no build; SANITIZERS none in its slackline_add_test() brings it back" >&2; failed=1; }
  done <build/release/tests-elsewhere.txt
fi
if [[ -n $tsan ]]; then check tsan "$tsan"; fi
if [[ -n $asan ]]; then check asan "$asan"; fi
report
((failed == 0)) || { echo "test.sh: tests have failed, see above" >&2; exit 1; }
