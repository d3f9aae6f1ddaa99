#!/usr/bin/env bash
# Builds, on a machine with a GPU and without needing a network, what runs on
# GPUs, and checks it: tests, training in every mode, ranks that share one GPU, a
# rank that is killed, scripts of PyTorch, memory errors in kernels, benchmarks.
# Installs nothing.
# Usage: tools/gpu_check.sh [--deps DIR] [--build DIR] [--out DIR] [--jobs N]
#                           [--only STEP[,STEP...]] [--cpu] [--dry-run]
#   --deps DIR       libraries to build with, beside those of the system: Debian
#                    packages unpacked into DIR (see --make-deps)
#   --make-deps DIR  does nothing but fill DIR, on a machine with a network and
#                    Debian's or Ubuntu's packages; then take DIR along
#   --build DIR      build folder; default: build/gpu-check
#   --out DIR        new or empty folder for logs and runs; default:
#                    runs/gpu-check-TIME
#   --only STEPS     only these, in a build folder that has what they need
#   --cpu            trains on the CPU, to try the script where no GPU is
#   --dry-run        shows what would be done
# Exit code: 0 nothing failed, 1 something did, 2 wrong usage, 3 no GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

steps=(environment configure build tests memcheck initcheck
  train-bsp train-ssp train-asp train-allreduce train-phases
  ranks-2 ranks-4 kill-servers kill-allreduce
  script-bsp script-allreduce
  bench-apply bench-allreduce)

deps="" build=build/gpu-check out="" jobs="$(nproc)" only="" device=CUDA dry_run=0
usage() { sed -n '2,18p' "$0" | cut -c3-; }
wrong_usage() { echo "gpu_check.sh: $1; see --help" >&2; exit 2; }

make_deps() {
  local folder=$1 packages frontier known debs archive
  packages=(libzmq3-dev cppzmq-dev libprotobuf-dev protobuf-compiler libabsl-dev libgtest-dev libgmock-dev
    libgloo-dev libhwy-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libxxhash-dev
    libcpp-httplib-dev libbrotli-dev libcurl4-openssl-dev zlib1g-dev libssl-dev pkg-config)
  # And the libraries that these load, but for those that every machine has.
  frontier=("${packages[@]}")
  while ((${#frontier[@]})); do
    known="$(printf '%s\n' "${packages[@]}")"
    mapfile -t frontier < <(apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks \
      --no-replaces --no-enhances "${frontier[@]}" | sed -n 's/^ *|*\(Pre\)*Depends: //p' | sort -u |
      grep -E '^(lib|pkgconf)' | grep -vE -- '-dev$|^(libc6|libgcc|libstdc|libpython|libmpi|libopenmpi)' |
      grep -vxF "$known")
    packages+=("${frontier[@]}")
  done
  mkdir -p "$folder" && debs="$(mktemp -d)" || exit 1
  (cd "$debs" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}") || exit 1
  for deb in "$debs"/*.deb; do dpkg -x "$deb" "$folder"; done
  # What no build needs.
  rm -rf "$debs" "$folder"/usr/share/{doc,man,locale,lintian,bug} "${folder:?}"/{etc,var}
  find "$folder" -name '*.a' | while read -r archive; do
    [[ -e ${archive%.a}.so && $(readlink "${archive%.a}.so") != /* ]] && rm "$archive"
  done
  find "$folder" -type l -lname '/*' -delete  # To where this machine has it.
  du -sh "$folder"
}

while (($#)); do
  case "$1" in
    --deps) deps="$(realpath -e -- "${2:?--deps needs a folder}")" || exit 2; shift 2 ;;
    --make-deps) make_deps "${2:?--make-deps needs a folder}"; exit ;;
    --build) build="${2:?--build needs a folder}"; shift 2 ;;
    --out) out="${2:?--out needs a folder}"; shift 2 ;;
    --jobs) jobs="${2:?--jobs needs a number}"; shift 2 ;;
    --only) only="${2:?--only needs steps}"; shift 2 ;;
    --cpu) device=CPU; shift ;;
    --dry-run) dry_run=1; shift ;;
    --help|-h) usage; exit 0 ;;
    *) wrong_usage "unknown argument '$1'" ;;
  esac
done
if [[ -n $only ]]; then
  IFS=, read -r -a wanted <<<"$only"
  for step in "${wanted[@]}"; do
    [[ " ${steps[*]} " == *" $step "* ]] || wrong_usage "--only: there is no step '$step', only ${steps[*]}"
  done
  steps=("${wanted[@]}")
fi
out="${out:-runs/gpu-check-$(date -u +%Y%m%d-%H%M%S)}"

# ---- What a step does: its commands, from the root of the repository ---------
# A step may leave a sentence in $note for the table. It returns 0 for PASS,
# $skip for SKIP, anything else for FAIL.
skip=77

describe() {
  case "$1" in
    environment) echo "versions of driver, compilers and LibTorch" ;;
    configure) echo "cmake with SLACKLINE_CUDA=ON, for this machine's GPUs, into $build" ;;
    build) echo "programs, tests that need a GPU, GPU benchmarks; $jobs jobs" ;;
    tests) echo "ctest -L gpu" ;;
    memcheck) echo "kernel tests under compute-sanitizer --tool memcheck" ;;
    initcheck) echo "kernel tests under compute-sanitizer --tool initcheck" ;;
    train-phases) echo "2 workers on GPU 0: all-reduce, SSP, all-reduce and BSP in one job" ;;
    train-*) echo "2 workers on GPU 0, mode ${1#train-}" ;;
    ranks-*) echo "all-reduce of ${1#ranks-} NCCL ranks that share GPU 0" ;;
    kill-servers) echo "kill -9 of one of 3 workers in BSP: the others complete" ;;
    kill-allreduce) echo "kill -9 of one of 3 workers in all-reduce: the others complete" ;;
    script-*) echo "examples/python/gpu.py, mode ${1#script-}: 2 workers on GPU 0 against 2 on the CPU" ;;
    bench-apply) echo "an update on the GPU against a copy in its memory" ;;
    bench-allreduce) echo "all-reduce through Slackline against NCCL itself, ranks that share GPU 0" ;;
  esac
}

do_environment() {
  nvidia-smi || true
  uname -a
  cmake --version
  ${CXX:-c++} --version
  nvcc --version || /usr/local/cuda/bin/nvcc --version
  python3 -c 'import torch; print("torch", torch.__version__, torch.cuda.is_available())' || true
  git rev-parse HEAD 2>/dev/null || true
  note="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)"
  return 0
}

do_configure() {
  local arguments=(-S . -B "$build" -DCMAKE_BUILD_TYPE=Release) architectures prefixes="" nccl
  command -v ninja >/dev/null && arguments+=(-G Ninja)
  if [[ $device == CUDA ]]; then
    arguments+=(-DSLACKLINE_CUDA=ON)
    architectures="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -u | paste -sd';')"
    [[ $architectures =~ ^[0-9\;]+$ ]] && arguments+=("-DCMAKE_CUDA_ARCHITECTURES=$architectures")
    # A PyTorch from PyPI brings NCCL as a package of its own.
    nccl="$(python3 -c 'import importlib.util as u; s = u.find_spec("nvidia.nccl"); print(list(s.submodule_search_locations)[0])' 2>/dev/null)"
    [[ -n $nccl ]] && prefixes="$nccl"
    # The package for the Python whose PyTorch has CUDA, if that can build it.
    python3 -c 'import nanobind, torch' 2>/dev/null && arguments+=("-DPython_EXECUTABLE=$(command -v python3)")
  fi
  if [[ -n $deps ]]; then
    prefixes="$deps/usr${prefixes:+;$prefixes}"
    arguments+=("-DCMAKE_LIBRARY_PATH=$deps_libraries")
  fi
  [[ -n $prefixes ]] && arguments+=("-DCMAKE_PREFIX_PATH=$prefixes${CMAKE_PREFIX_PATH:+;$CMAKE_PREFIX_PATH}")
  echo cmake "${arguments[@]}"
  cmake "${arguments[@]}"
}

do_build() {
  local targets=(slackline slackline_server slackline_worker slackline_python) known
  if [[ $device == CUDA ]]; then
    known="$(cmake --build "$build" --target help)"
    for target in slackline_gpu_tests bench_apply_gpu bench_allreduce; do
      grep -qE "(^|[ /])$target(:|$)" <<<"$known" && targets+=("$target")
    done
  fi
  echo "targets: ${targets[*]}"
  cmake --build "$build" --parallel "$jobs" --target "${targets[@]}"
}

do_tests() {
  [[ $device == CUDA ]] || { note="needs a GPU"; return "$skip"; }
  ctest --test-dir "$build" -L '^gpu$' --no-tests=error --output-on-failure || return 1
  local skipped
  skipped="$(ctest --test-dir "$build" -L '^gpu$' -N | grep -c 'Test *#')"
  note="$skipped programs$(grep -q Skipped "$log" && echo ", some skipped: see the log")"
}

sanitize() {
  [[ $device == CUDA ]] || { note="needs a GPU"; return "$skip"; }
  local tool=$1 sanitizer
  sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)"
  [[ -n $sanitizer ]] || { note="no compute-sanitizer here"; return "$skip"; }
  local program result=0
  for program in optimizer_cuda_test half_cuda_test; do
    timeout 600 "$sanitizer" --tool "$tool" --error-exitcode 99 "$build/tests/$program" \
      --gtest_filter='-*MoreElementsThanThreads*' || result=1
  done
  if grep -q 'Device not supported' "$log"; then note="refuses this GPU"; return "$skip"; fi
  return "$result"
}
do_memcheck() { sanitize memcheck; }
do_initcheck() { sanitize initcheck; }

# processes WORKERS: the begin of a config.
processes() {
  local i
  echo 'job: "gpu-check"'
  echo 'server { host: "127.0.0.1" count: 2 threads: 1 }'
  for ((i = 0; i < $1; ++i)); do
    echo "worker { host: \"127.0.0.1\" count: 1$([[ $device == CUDA ]] && echo " device: CUDA gpu: $i") }"
  done
}

# write_config FILE WORKERS TRAIN_EXAMPLES
write_config() {
  cat >"$1" <<CONFIG
$(processes "$2")
model { mlp { hidden: [256, 256] } }
data {
  teacher_student { features: 256 train_examples: $3 test_examples: 2000 }
  batch_size: 64
}
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
sync { bsp {} }
train { epochs: 2 seed: 1 }
CONFIG
}

# All workers on one GPU, which Slackline and NCCL both refuse, since it is no way
# to train: each reads a config in which it is the one that has GPU 0, and tells
# NCCL that it is on a host of its own.
worker_programs() {
  local programs
  programs="$(realpath "$build")/bin"
  mkdir -p "$out/bin"
  ln -sf "$programs/slackline_server" "$out/bin/slackline_server"
  cat >"$out/bin/own_place" <<'PLACE'
own="$cluster.worker-$index"
sed -E "s/(gpu: \[?)0\b/\1other/; s/(gpu: \[?)$index\b/\10/; s/(gpu: \[?)other/\1$index/" "$cluster" >"$own"
export NCCL_HOSTID="gpu-check-$index" NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
PLACE
  cat >"$out/bin/slackline_worker" <<WORKER
#!/usr/bin/env bash
for argument in "\$@"; do
  case "\$argument" in
    --cluster=*) cluster="\${argument#*=}" ;;
    --index=*) index="\${argument#*=}" ;;
  esac
done
. "$out/bin/own_place"
exec "$programs/slackline_worker" "\${@/#--cluster=*/--cluster=\$own}"
WORKER
  cat >"$out/bin/script" <<SCRIPT
#!/usr/bin/env bash
cluster="\$SLACKLINE_CLUSTER" index="\$SLACKLINE_INDEX"
. "$out/bin/own_place"
export SLACKLINE_CLUSTER="\$own" PYTHONPATH="$(realpath "$build")/python"
cd "$out"  # Where it writes its model.
exec "\$@"
SCRIPT
  chmod +x "$out/bin/slackline_worker" "$out/bin/script"
}

# run_job NAME CONFIG [arguments of slackline run...]
run_job() {
  local name=$1 config=$2
  shift 2
  worker_programs
  timeout 600 "$build/bin/slackline" run "$config" --bin-dir "$out/bin" --out "$out/$name" --no-progress "$@"
}

# summary NAME FIELD: of a run's summary.json.
summary() {
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$out/$1/summary.json" "$2"
}

# Untrained, the model is right for one example in ten.
expect_trained() {
  local accuracy
  accuracy="$(summary "$1" test_accuracy)" || return 1
  note="accuracy $accuracy, $(summary "$1" examples_per_second | cut -d. -f1) examples/s, model $(summary "$1" model_sha256 | cut -c1-12)"
  python3 -c "raise SystemExit(0 if $accuracy > 0.5 else 'accuracy $accuracy: nothing was learned')"
}

train() {
  write_config "$out/$1.textproto" "$2" 20000
  run_job "$1" "$out/$1.textproto" "${@:3}" && expect_trained "$1"
}
do_train-bsp() { train train-bsp 2 --mode bsp; }
do_train-ssp() { train train-ssp 2 --mode ssp:3; }
do_train-asp() { train train-asp 2 --mode asp; }
do_train-allreduce() { train train-allreduce 2 --mode allreduce; }
do_train-phases() {
  local config="$out/train-phases.textproto"
  write_config "$config" 2 20000
  sed -i 's/^sync .*/sync {\n  phase { allreduce {} until_epoch: 0.5 }\n  phase { ssp { staleness: 3 } until_epoch: 1 }\n  phase { allreduce {} until_epoch: 1.5 }\n  phase { bsp {} }\n}/' "$config"
  run_job train-phases "$config" && expect_trained train-phases || return 1
  local changes
  changes="$(summary train-phases mode_changes)" || return 1
  note+=", $changes changes of mode"
  [[ $changes == 3 ]] || { echo "3 changes of mode were to happen, not $changes"; return 1; }
}
do_ranks-2() { train ranks-2 2 --mode allreduce --epochs 1; }
do_ranks-4() { train ranks-4 4 --mode allreduce --epochs 2; }

# Kills worker 1 when it has completed 20 steps.
kill_one() {
  local name=$1 mode=$2 pid="" victim="" deadline=$((SECONDS + 120))
  write_config "$out/$name.textproto" 3 200000
  run_job "$name" "$out/$name.textproto" --mode "$mode" --epochs 3 --set limits.lease_ms=2000 &
  pid=$!
  while [[ -z $victim ]] && kill -0 "$pid" 2>/dev/null && ((SECONDS < deadline)); do
    sleep 0.2
    victim="$("$build/bin/slackline" status --json "$out/$name" 2>/dev/null | python3 -c '
import json, sys
for worker in json.load(sys.stdin).get("worker", []):
    if worker.get("rank", 0) == 1 and int(worker.get("clock", 0)) >= 20:
        print(worker["pid"])' 2>/dev/null)"
  done
  if [[ -n $victim ]]; then
    kill -9 "$victim" && echo "killed worker 1, process $victim"
  else
    echo "worker 1 did not come to step 20"
    kill -INT "$pid" 2>/dev/null
  fi
  wait "$pid" || return 1
  [[ -n $victim ]] && expect_trained "$name" || return 1
  local lost
  lost="$(summary "$name" workers_lost)"
  echo "lost: $lost"
  note+=", lost: $lost"
  [[ $lost == *"worker 1"* ]]
}
do_kill-servers() { kill_one kill-servers bsp; }
do_kill-allreduce() { kill_one kill-allreduce allreduce; }

# script_job NAME DEVICE MODE PYTHON
script_job() {
  local device=$2
  { processes 2; echo 'train { seed: 1 }'; } >"$out/$1.textproto"
  run_job "$1" "$out/$1.textproto" --mode "$3" -- "$out/bin/script" "$4" "$PWD/examples/python/gpu.py"
}
script() {
  local name=script-$1 python on_device on_cpu
  python="$(sed -n 's/^_Python_EXECUTABLE:INTERNAL=//p' "$build/CMakeCache.txt")"
  compgen -G "$build/python/slackline/_core.*" >/dev/null || { note="the Python package was not built"; return "$skip"; }
  if [[ $device == CUDA ]] && ! "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then
    note="the PyTorch of $python finds no GPU"
    return "$skip"
  fi
  script_job "$name" "$device" "$1" "$python" && script_job "$name-cpu" CPU "$1" "$python" || return 1
  # Else the parameters went through the host.
  [[ $device == CPU ]] || grep -q '; on cuda:0$' "$out/$name/logs/worker-0.log" || return 1
  on_device="$(summary "$name" test_loss)" && on_cpu="$(summary "$name-cpu" test_loss)" || return 1
  note="test loss $on_device, on the CPU $on_cpu"
  python3 -c "raise SystemExit(0 if abs($on_device / $on_cpu - 1) < 0.02 else 'the losses differ by more than 2 %')"
}
do_script-bsp() { script bsp; }
do_script-allreduce() { script allreduce; }

benchmark() {
  [[ $device == CUDA ]] || { note="needs a GPU"; return "$skip"; }
  [[ -x $build/bin/$1 ]] || { note="$1 was not built"; return "$skip"; }
  timeout 600 "$build/bin/$1" "${@:2}"
}
do_bench-apply() { benchmark bench_apply_gpu; }
# Over sockets, as all ranks are on one GPU: no figures of NCCL's speed.
do_bench-allreduce() {
  benchmark bench_allreduce --transports nccl --bytes 64KiB,1MiB,16MiB,64MiB --repeats 5
}

# ---- All of them -------------------------------------------------------------

if ((dry_run)); then
  echo "logs and runs: $out"
  for step in "${steps[@]}"; do printf '%-16s %s\n' "$step" "$(describe "$step")"; done
  exit 0
fi

if [[ $device == CUDA ]] && ! nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null &&
  ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  echo "gpu_check.sh: no GPU on this machine: nvidia-smi shows none, and there is no /dev/nvidia0" >&2
  echo "gpu_check.sh: nothing was built; --dry-run shows what would be done, --cpu trains on the CPU" >&2
  exit 3
fi

mkdir -p "$out" && out="$(realpath "$out")" || exit 1
if [[ -n $deps ]]; then
  deps_libraries="$(dirname "$(find "$deps/usr/lib" -name 'libzmq.so' | head -1)")"
  [[ -d $deps_libraries ]] || wrong_usage "--deps: there is no libzmq.so below $deps/usr/lib"
  # Packages believe that they are in /usr.
  mkdir -p "$build/pkgconfig" "$build/libraries" && build="$(realpath "$build")" || exit 1
  for file in "$deps_libraries"/pkgconfig/*.pc "$deps"/usr/share/pkgconfig/*.pc; do
    [[ -e $file ]] && sed "s|=/usr|=$deps/usr|" "$file" >"$build/pkgconfig/$(basename "$file")"
  done
  # Programs that came with the machine keep its libraries.
  of_the_machine="$(ldconfig -p)"
  for file in "$deps_libraries"/*.so.* "$deps"/usr/lib/*.so.*; do
    grep -qF "$(basename "$file") " <<<"$of_the_machine" || ln -sf "$file" "$build/libraries/"
  done
  PKG_CONFIG_PATH="$build/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
  LD_LIBRARY_PATH="$build/libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  CPLUS_INCLUDE_PATH="$deps/usr/include:$deps/usr/include/$(basename "$deps_libraries")${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"
  export PATH="$PATH:$deps/usr/bin" PKG_CONFIG_PATH LD_LIBRARY_PATH CPLUS_INCLUDE_PATH
fi

table="" failed=0
for step in "${steps[@]}"; do
  log="$out/$step.log" note=""
  echo "== $step: $(describe "$step")" >&2
  start=$SECONDS
  note_file="$out/.note"
  (
    note=""
    "do_$step"
    code=$?
    printf '%s' "$note" >"$note_file"
    exit $code
  ) >"$log" 2>&1
  case $? in
    0) result=PASS ;;
    "$skip") result=SKIP ;;
    *) result=FAIL failed=1; tail -5 "$log" | sed 's/^/   /' >&2 ;;
  esac
  note="$(cat "$note_file" 2>/dev/null)"
  rm -f "$note_file"
  table+="$(printf '%-16s %-5s %5s s  %s' "$step" $result $((SECONDS - start)) "$note")"$'\n'
  if [[ $result == FAIL && $step =~ ^(configure|build)$ ]]; then
    table+="the rest was not tried"$'\n'
    break
  fi
done
echo
echo "step             result  time  "
printf '%s' "$table"
echo "logs: $out/STEP.log"
exit $failed
