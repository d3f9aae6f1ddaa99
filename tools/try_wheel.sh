#!/usr/bin/env bash
# Tries a wheel beside a PyTorch of PyPI: in a fresh environment, it imports both in
# either order, and trains with two workers through servers and by all-reduce. The
# newest PyTorch is a download of 3 GB.
# Usage: tools/try_wheel.sh [--wheel FILE] [--python PYTHON] [--torch VERSION] [--venv DIR]
#                           [-- PROGRAM ARGS]
#   --wheel   default: tools/build_wheel.sh builds it, with --python if that is given
#   --python  the environment's; default that of build/venv
#   --torch   default: the newest
#   --venv    kept, and its PyTorch used again; default: a new folder, removed again
#   --        runs this command in the environment instead
set -euo pipefail

wheel=""
python=""
torch=""
venv=""
program=()
while (($#)); do
  case "$1" in
    --wheel) wheel="$(realpath -e -- "${2:?--wheel needs a file}")" || exit 2; shift 2 ;;
    --python) python="${2:?--python needs an interpreter}"; shift 2 ;;
    --torch) torch="${2:?--torch needs a version}"; shift 2 ;;
    --venv) venv="$(realpath -m -- "${2:?--venv needs a folder}")"; shift 2 ;;
    --) shift; program=("$@"); break ;;
    --help|-h) sed '1d; /^#/!Q; s/^# \?//' "$0"; exit 0 ;;
    *) echo "try_wheel.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done
# The programs of the command are looked for where the user is.
here="$PWD"
cd "$(dirname "$0")/.."
root="$PWD"

fail() { echo "try_wheel: $*" >&2; exit 1; }

[[ -n $wheel ]] || wheel="$(tools/build_wheel.sh ${python:+--python "$python"} | tail -1)"
python="${python:-$root/build/venv/bin/python}"
[[ -x "$(command -v "$python")" ]] || fail "$python is not there; tools/setup.sh makes build/venv, --python names another one"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
venv="${venv:-$work/venv}"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv" || fail "$python -m venv failed"
"$venv/bin/python" -m pip install --quiet numpy "torch${torch:+==$torch}" ||
  fail "pip could not install PyTorch; its last lines say why"
"$venv/bin/python" -m pip install --quiet --force-reinstall --no-deps "$wheel" ||
  fail "pip could not install $wheel; its last lines say why"

export PATH="$venv/bin:$PATH"
unset PYTHONPATH
if ((${#program[@]})); then
  cd "$here"
  "${program[@]}"
  exit
fi
cd "$work"
for order in "torch, slackline" "slackline, torch"; do
  python -c "import $order; print('try_wheel: import $order:', torch.__version__, slackline.__version__)"
done
cp "$root"/python/tests/wheel_job.{py,textproto} .
for mode in bsp ssp:3 allreduce; do
  slackline run wheel_job.textproto --mode "$mode" --out "${mode/:/-}" -- python wheel_job.py model.safetensors ||
    fail "the job failed in mode $mode"
done
slackline summary bsp ssp-3 allreduce
