#!/usr/bin/env bash
# Builds Slackline for GPUs: against a PyTorch with CUDA, which pip installs into
# a virtual environment of its own (several gigabytes), and its NCCL.
# Usage: tools/build_with_pytorch.sh [--torch VERSION] [--cuda DIR] [--venv DIR] [--build DIR]
#                                    [--target NAME]... [--pip-arg ARG]... [--cmake-arg ARG]...
#   --torch      the version, 2.6 or newer; default 2.11.0, whose wheel is for CUDA 13
#   --cuda       the CUDA Toolkit, of the same major version as PyTorch's CUDA;
#                default: that of the nvcc on the PATH, else /usr/local/cuda
#   --venv       default build/pytorch-venv; used again if the version is there already
#   --build      default build/pytorch
#   --target     default slackline, slackline_server and slackline_worker; "all" has the tests, too
#   --pip-arg    for pip install, such as another index for wheels of another CUDA
#   --cmake-arg  for the configuration, such as -DCMAKE_CUDA_ARCHITECTURES=90
set -euo pipefail

torch=2.11.0
cuda=""
venv=""
build=""
targets=()
pip_args=()
cmake_args=()
while (($#)); do
  case "$1" in
    --torch) torch="${2:?--torch needs a version}"; shift 2 ;;
    --cuda) cuda="$(realpath -e -- "${2:?--cuda needs a folder}")" || exit 2; shift 2 ;;
    --venv) venv="$(realpath -m -- "${2:?--venv needs a folder}")"; shift 2 ;;
    --build) build="$(realpath -m -- "${2:?--build needs a folder}")"; shift 2 ;;
    --target) targets+=("${2:?--target needs a name}"); shift 2 ;;
    --pip-arg) pip_args+=("${2:?--pip-arg needs an argument}"); shift 2 ;;
    --cmake-arg) cmake_args+=("${2:?--cmake-arg needs an argument}"); shift 2 ;;
    --help|-h) sed '1d; /^#/!Q; s/^# \?//' "$0"; exit 0 ;;
    *) echo "build_with_pytorch.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."
venv="${venv:-$PWD/build/pytorch-venv}"
build="${build:-$PWD/build/pytorch}"
((${#targets[@]})) || targets=(slackline slackline_server slackline_worker)

fail() { echo "build_with_pytorch: $*" >&2; exit 1; }

# The toolkit first: its absence shall not cost a download.
if [[ -z $cuda ]]; then
  if nvcc="$(command -v nvcc)"; then
    cuda="$(dirname "$(dirname "$(realpath "$nvcc")")")"
  else
    cuda=/usr/local/cuda
  fi
fi
[[ -x $cuda/bin/nvcc ]] || fail "no nvcc in $cuda/bin; install a CUDA Toolkit (https://developer.nvidia.com/cuda-downloads), or name one with --cuda DIR"
cuda_version="$("$cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')"

tools/setup.sh

python="$venv/bin/python"
[[ -x $python ]] || python3 -m venv "$venv" ||
  fail "python3 -m venv failed; install python3-venv, or name another folder with --venv DIR"
installed() { "$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true; }
if [[ "$(installed)" != "$torch" && "$(installed)" != "$torch"+* ]]; then
  echo "build_with_pytorch: installing PyTorch $torch into $venv" >&2
  "$python" -m pip install --quiet "${pip_args[@]}" "torch==$torch" ||
    fail "pip could not install torch==$torch; its last lines say why (is there a wheel for $(python3 --version)?)"
fi

# Four lines: CUDA's version, 1 for today's C++ ABI, CMake's folder, NVIDIA's libraries.
mapfile -t facts < <("$python" - <<'PYTHON'
import pathlib, torch
print(torch.version.cuda or "")
print(int(torch.compiled_with_cxx11_abi()))
print(torch.utils.cmake_prefix_path)
print(pathlib.Path(torch.__file__).parent.parent / "nvidia")
PYTHON
)
((${#facts[@]} == 4)) || fail "PyTorch in $venv cannot be imported; see the error above, or remove the folder and try again"
torch_cuda="${facts[0]}"
nvidia="${facts[3]}"
[[ -n $torch_cuda ]] ||
  fail "PyTorch $torch in $venv has no CUDA; give another --torch, or the index of the wheels with CUDA by --pip-arg"
[[ ${torch_cuda%%.*} == "${cuda_version%%.*}" ]] ||
  fail "PyTorch $torch is for CUDA $torch_cuda, but the toolkit in $cuda is $cuda_version: the major versions have to be the same; give another --torch, --cuda or --pip-arg"
[[ ${facts[1]} == 1 ]] ||
  fail "PyTorch $torch has the old C++ ABI, which no other library here has; use 2.6 or newer"

# One CUDA runtime and one NCCL in a process: those of the wheel, which has
# headers for NCCL, too.
cudart="$(find "$nvidia" -name 'libcudart.so.*' -print -quit 2>/dev/null || true)"
[[ -z $cudart ]] || cmake_args+=("-DCMAKE_BUILD_RPATH=$(dirname "$cudart")")
if [[ -f $nvidia/nccl/include/nccl.h && -f $nvidia/nccl/lib/libnccl.so.2 ]]; then
  cmake_args+=("-DNCCL_INCLUDE_DIR=$nvidia/nccl/include" "-DNCCL_LIBRARY=$nvidia/nccl/lib/libnccl.so.2")
fi

cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DSLACKLINE_CUDA=ON \
  -DCUDAToolkit_ROOT="$cuda" -DCUDA_TOOLKIT_ROOT_DIR="$cuda" \
  -DCMAKE_PREFIX_PATH="${facts[2]}" "${cmake_args[@]}"
cmake --build "$build" --target "${targets[@]}"
echo "build_with_pytorch: PyTorch $("$python" -c 'import torch; print(torch.__version__)'), CUDA Toolkit $cuda_version; programs: $build/bin" >&2
