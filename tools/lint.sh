#!/usr/bin/env bash
# Clang's view of the product: the checks of .clang-tidy, and that whatever a mutex
# guards is locked (-Wthread-safety). Needs clang-tidy; configures build/lint, in which
# each source is compiled by itself.
# Usage: tools/lint.sh [--all | FILE.cc...]
# Without arguments: the files that differ from the branch main. --all takes about
# five seconds of a core for each of 200 files.
set -euo pipefail

case "${1:-}" in
  --help|-h) sed '1d; /^#/!Q; s/^# \?//' "$0"; exit 0 ;;
esac
root="$(cd "$(dirname "$0")/.." && pwd)"
build="$root/build/lint"
command -v clang-tidy >/dev/null || { echo "lint.sh: there is no clang-tidy; install it with apt-get install clang-tidy" >&2; exit 1; }
mkdir -p "$root/build"
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DSLACKLINE_UNITY=OFF \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >"$root/build/lint.log" 2>&1 || { cat "$root/build/lint.log" >&2; exit 1; }
# Headers that protoc writes.
ninja -C "$build" $(cd "$root/proto" && printf 'generated/proto/%s.pb.h ' $(basename -s .proto -- *.proto)) >"$root/build/lint.log" 2>&1 ||
  { cat "$root/build/lint.log" >&2; exit 1; }

# Which folders, and which options of g++ clang does not know: as tests/tidy_test.py has them.
of_tidy_test() { PYTHONPATH="$root/tests" python3 -B -c "import tidy_test; print(*tidy_test.$1, sep='\n')"; }
mapfile -t sources < <(of_tidy_test FOLDERS | sed 's#$#/*.cc#')
mapfile -t options < <(of_tidy_test ARGUMENTS)

if (($# == 0)); then
  base="$(git -C "$root" merge-base HEAD main)"
  mapfile -t files < <(git -C "$root" diff --name-only --diff-filter=d "$base" -- "${sources[@]}" | sed "s#^#$root/#")
elif [[ $1 == --all ]]; then
  mapfile -t files < <(git -C "$root" ls-files "${sources[@]}" | sed "s#^#$root/#")
else
  mapfile -t files < <(realpath -e -- "$@")
fi
# Files that this build leaves out (GPU code on a machine without CUDA) have no
# command to look at them with.
# Clang 14 does not take LibTorch 1.13's modules for C++20.
built=()
for file in "${files[@]}"; do
  if grep -q '^#include "worker/model/network.h"' "$file"; then
    echo "lint.sh: ${file#"$root"/} is left out: clang does not read the headers of LibTorch's modules" >&2
    continue
  fi
  if grep -qF "\"file\": \"$file\"" "$build/compile_commands.json"; then built+=("$file"); fi
done
((${#built[@]})) || { echo "lint.sh: nothing to look at" >&2; exit 0; }
printf '%s\0' "${built[@]}" | xargs -0 -n 4 -P "$(nproc)" \
  clang-tidy -p "$build" "${options[@]}" --extra-arg=-Wthread-safety --extra-arg=-Wsign-compare
