#!/usr/bin/env bash
# Installs what building, running and testing Slackline needs on Debian 12 or
# Ubuntu 22.04/24.04. Safe to run again: it asks apt only for what is missing.
# Usage: tools/setup.sh [--check] [--clang]
# --check lists what is missing, and installs nothing. --clang: also clang, for the
# tests with its sanitizers and the fuzzers.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache git ca-certificates pkg-config
  libzmq3-dev cppzmq-dev libprotobuf-dev protobuf-compiler libabsl-dev
  libgtest-dev libgmock-dev
  libgloo-dev libhwy-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev
  libcpp-httplib-dev zlib1g-dev libssl-dev
  # Debian's LibTorch falls back to reference BLAS, 15 times slower, without this.
  libtorch-dev libopenblas0-pthread
  # The independent solver that the a9a test compares with.
  python3 python3-numpy python3-scipy
  # What benchmarks/compare_ddp.py compares with; 17 MB to load beside LibTorch.
  python3-torch
  # The pictures in docs/.
  python3-matplotlib
)
check_only=0
for argument in "$@"; do
  case "$argument" in
    --check) check_only=1 ;;
    # Its sanitizers are in a package of their own on some distributions.
    --clang) packages+=(clang libclang-rt-dev) ;;
    *) echo "setup.sh: unknown argument '$argument'; --check and --clang are known" >&2; exit 2 ;;
  esac
done

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
  if ! apt-cache show libtorch-dev >/dev/null 2>&1; then
    cat >&2 <<'NOTE'
setup: this distribution has no package libtorch-dev. Install a CPU build of PyTorch 2.6 or newer for
setup: python3 (older wheels have another C++ ABI); CMake finds it through python3, or give it with
setup:     export CMAKE_PREFIX_PATH=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')
NOTE
  fi
  for i in "${!missing[@]}"; do
    case "${missing[i]}" in
      libtorch-dev|python3-torch|libclang-rt-dev)
        apt-cache show "${missing[i]}" >/dev/null 2>&1 || unset 'missing[i]' ;;
    esac
  done
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
fi
echo "setup: all packages present" >&2
