#!/usr/bin/env bash
# Installs what is missing, builds, and trains on MNIST with 2 servers and 4
# workers in each of the four synchronisation modes. Ends with a table of the
# four runs and the folder with their files.
# Usage: tools/quickstart.sh [--data-dir DIR] [--epochs E] [--out DIR]
set -euo pipefail
cd "$(dirname "$0")/.."

data_args=()
epochs=5
out="runs/quickstart-$(date -u +%Y%m%d-%H%M%S)"
while (($#)); do
  case "$1" in
    --data-dir) data_args=(--data-dir "${2:?--data-dir needs a folder}"); shift 2 ;;
    --epochs) epochs="${2:?--epochs needs a number}"; shift 2 ;;
    --out) out="${2:?--out needs a folder}"; shift 2 ;;
    --help|-h) sed -n '2,5p' "$0" | cut -c3-; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done

tools/setup.sh
cmake --preset release
cmake --build --preset release --target slackline_product

runs=()
for mode in bsp ssp:3 asp allreduce; do
  run="$out/${mode/:/-}"
  echo >&2
  echo "== $mode: $epochs epochs with 2 servers and 4 workers" >&2
  build/release/bin/slackline run examples/mnist_mlp.textproto --mode "$mode" \
    --epochs "$epochs" --out "$run" "${data_args[@]}"
  runs+=("$run")
done

echo
build/release/bin/slackline summary "${runs[@]}"
echo
echo "All files of the runs (config, logs, metrics.jsonl, summary.json, model.safetensors): $out"
echo "To go on: export PATH=$PWD/build/release/bin:\$PATH, then slackline --help, and README.md from \"A run\" on"
