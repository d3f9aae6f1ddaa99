#!/usr/bin/env bash
# Installs what building, running and testing Slackline needs on Debian 12 or
# Ubuntu 22.04/24.04. Safe to run again: it asks apt only for what is missing.
# Usage: tools/setup.sh [--check]   (--check lists what is missing, installs nothing)
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache git ca-certificates pkg-config
  libzmq3-dev cppzmq-dev libprotobuf-dev protobuf-compiler libabsl-dev
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev
  libgloo-dev libhwy-dev libcli11-dev libspdlog-dev nlohmann-json3-dev
  libcpp-httplib-dev prometheus-cpp-dev zlib1g-dev libssl-dev
  # Debian's LibTorch falls back to reference BLAS, 15 times slower, without this.
  libopenblas0-pthread
  # The independent solver that the a9a test compares with.
  python3 python3-numpy python3-scipy
)
# Distributions without libtorch-dev get PyTorch's CPU build from PyPI instead.
if apt-cache show libtorch-dev >/dev/null 2>&1; then
  packages+=(libtorch-dev)
  torch_from_pip=0
else
  packages+=(python3-venv)
  torch_from_pip=1
fi

case "${1:-}" in
  "") check_only=0 ;;
  --check) check_only=1 ;;
  *) echo "setup.sh: unknown argument '$1'; only --check is known" >&2; exit 2 ;;
esac

installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done

if ((${#missing[@]})); then
  echo "setup: missing packages: ${missing[*]}" >&2
  ((check_only)) && exit 1
  as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || {
      echo "setup: not root and no sudo; as root run: apt-get install -y ${missing[*]}" >&2
      exit 1
    }
    as_root=(sudo)
  fi
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
fi
echo "setup: all packages present" >&2
