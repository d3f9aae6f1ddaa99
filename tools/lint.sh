#!/usr/bin/env bash
# Clang's view of the product: the checks of .clang-tidy, and that whatever a mutex
# guards is locked (-Wthread-safety). Needs clang-tidy and a configured build.
# Usage: tools/lint.sh [--all | FILE.cc...]
# Without arguments: the files that differ from the branch main. --all takes about
# five seconds of a core for each of 200 files.
set -euo pipefail

case "${1:-}" in
  --help|-h) sed -n '2,6p' "$0" | cut -c3-; exit 0 ;;
esac
root="$(cd "$(dirname "$0")/.." && pwd)"
build="$root/build/release"
command -v clang-tidy >/dev/null || { echo "lint.sh: there is no clang-tidy; install it with apt-get install clang-tidy" >&2; exit 1; }
[[ -f $build/compile_commands.json ]] || { echo "lint.sh: $build is not configured; run cmake --preset release" >&2; exit 1; }

if (($# == 0)); then
  base="$(git -C "$root" merge-base HEAD main)"
  mapfile -t files < <(git -C "$root" diff --name-only --diff-filter=d "$base" -- 'common/*.cc' 'job/*.cc' 'server/*.cc' 'tools/*.cc' 'worker/*.cc' | sed "s#^#$root/#")
elif [[ $1 == --all ]]; then
  mapfile -t files < <(git -C "$root" ls-files 'common/*.cc' 'job/*.cc' 'server/*.cc' 'tools/*.cc' 'worker/*.cc' | sed "s#^#$root/#")
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
# Options of g++ that clang does not know are no warnings here.
printf '%s\0' "${built[@]}" | xargs -0 -n 4 -P "$(nproc)" \
  clang-tidy -p "$build" --quiet --extra-arg=-Wthread-safety --extra-arg=-Wsign-compare \
  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument
