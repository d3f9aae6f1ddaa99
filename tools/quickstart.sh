#!/usr/bin/env bash
# Installs what is missing, builds, and trains on MNIST with 2 servers and 4
# workers in each of the four synchronisation modes: ends with a table of the four
# runs. Then builds the rest of what README.md shows. On two cores, with nothing
# there: the first row after about five minutes, the table after seven, the rest
# after nine. What is installed or built already is not done again; the runs are.
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
    --help|-h) sed '1d; /^#/!Q; s/^# \?//' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done

mkdir -p build
log=build/quickstart.log
: >"$log"
job=""
stop() {
  trap - INT TERM
  if [[ -n $job ]]; then
    kill -TERM "$job" 2>/dev/null || true
    wait "$job" 2>/dev/null || true
  fi
  echo >&2
  echo "quickstart.sh: stopped; the same command goes on with what is built, and begins the runs anew" >&2
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

# How much of a stage is done, in percent: by ninja's "[120/260]" in the log, or by
# the time that it usually takes.
percent() {
  local seconds=$1 passed=$2 counted
  counted="$(tail -n 3 "$log" | tr '\r' '\n' | sed -n 's/^\[\([0-9]*\)\/\([0-9]*\)\].*/\1 \2/p' | tail -n 1)"
  if [[ -n $counted ]]; then
    echo $((100 * ${counted% *} / ${counted#* }))
  else
    echo $((passed >= seconds ? 99 : 100 * passed / seconds))
  fi
}

# stage TEXT SECONDS COMMAND...: runs the command, with what it says in $log, and
# shows how far it is. SECONDS: what it takes on two cores if nothing is there.
stage() {
  local text=$1 seconds=$2 start=$SECONDS done_percent bar shown=-1
  shift 2
  echo "== $text" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null &
  job=$!
  while kill -0 "$job" 2>/dev/null; do
    done_percent="$(percent "$seconds" $((SECONDS - start)))"
    if [[ -t 2 ]]; then
      printf -v bar '%*s' $((done_percent / 4)) ''
      printf '\r%-44s [%-25s] %3d %%  %d:%02d ' "$text" "${bar// /=}" "$done_percent" \
        $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)) >&2
    elif ((shown < 0 || SECONDS - start >= shown + 30)); then
      shown=$((SECONDS - start))
      echo "$text: $done_percent %, $shown s (about $seconds s in all, if nothing is there)" >&2
    fi
    sleep 0.5
  done
  if ! wait "$job"; then
    echo >&2
    tail -n 30 "$log" >&2
    echo "quickstart.sh: \"$text\" failed; all that it said is in $log" >&2
    exit 1
  fi
  job=""
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
  printf '%s: done in %d s\n' "$text" $((SECONDS - start)) >&2
}

build() { exec ninja -C build/release "$@"; }

# `sudo` asks for a password at the terminal, once: so it is asked for all there is.
packages=(tools/setup.sh --programs)
if ((EUID != 0)); then packages=(tools/setup.sh); fi
stage "packages of the distribution" 60 "${packages[@]}"
stage "looking for libraries" 15 cmake --preset release
stage "building the programs that train" 300 build slackline slackline_server slackline_worker

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
echo

stage "packages of the rest: Python, plots" 60 tools/setup.sh
stage "looking for libraries" 15 cmake --preset release
stage "building the rest: Python package, replay" 60 build slackline_product
echo "To go on: export PATH=$PWD/build/release/bin:\$PATH, then slackline --help, and README.md from \"A run\" on"
