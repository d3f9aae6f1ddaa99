#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <typeinfo>
#include <vector>

#include "common/cuda/sweep.h"
#include "common/floats/round_body.h"
#include "common/optim/finite_body.h"
#include "common/optim/update_body.h"
#include "tests/gpu/simulated/streams.h"

namespace slackline::simulated {
namespace {

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "simulated GPU: %s\n", what);
  std::abort();
}

struct Operation {
  std::function<bool()> run;
  // If it waits for an event: which, and for which record of it.
  cudaEvent_t event = nullptr;
  uint64_t record = 0;
};
struct Event {
  uint64_t recorded = 0;
  uint64_t done = 0;
  cudaStream_t stream = nullptr;  // Of the last record.
};
struct Memory {
  size_t bytes = 0;
  int gpu = 0;
};

std::recursive_mutex mutex;
std::map<cudaStream_t, std::deque<Operation>> streams;
std::map<cudaEvent_t, Event> events;
std::map<const char*, Memory> memories;  // By begin.
std::map<const void*, std::string> kernels;
std::mt19937 random_numbers;
uintptr_t last_handle = 0;
long operations = 0;
long copies = 0;
std::chrono::milliseconds copy_to_host{0};  // What each takes.
thread_local int current_gpu = 0;

using Lock = std::lock_guard<std::recursive_mutex>;

// Runs the first operation of a stream, if there is one and it can run now.
bool Try(cudaStream_t stream) {
  std::deque<Operation>& queue = streams[stream];
  if (queue.empty()) return false;
  const Operation& first = queue.front();
  if (first.event != nullptr ? events[first.event].done < first.record
                             : !first.run()) {
    return false;
  }
  ++operations;
  queue.pop_front();
  return true;
}

void RunSome() {
  std::vector<cudaStream_t> all;
  for (const auto& [stream, queue] : streams) all.push_back(stream);
  for (int i = 0; i < 3 && !all.empty(); ++i)
    Try(all[random_numbers() % all.size()]);
}

void RunAll(cudaStream_t stream) {
  while (!streams[stream].empty()) {
    if (Try(stream)) continue;
    const Operation& first = streams[stream].front();
    if (first.event == nullptr) continue;  // It waits for another process.
    const cudaStream_t other = events[first.event].stream;
    if (other == stream) Die("a stream waits for itself");
    while (events[first.event].done < first.record) {
      if (!Try(other)) RunAll(other);
    }
  }
}

// The memory of a GPU that holds this address.
const Memory* Find(const void* address, size_t bytes) {
  const char* const begin = static_cast<const char*>(address);
  auto found = memories.upper_bound(begin);
  if (found == memories.begin()) return nullptr;
  --found;
  return begin + bytes <= found->first + found->second.bytes ? &found->second
                                                             : nullptr;
}

void Take(const void* address, size_t bytes, int gpu) {
  const char* const begin = static_cast<const char*>(address);
  // What it overlaps with was freed since.
  for (auto it = memories.begin(); it != memories.end();) {
    const bool overlaps =
        it->first < begin + bytes && begin < it->first + it->second.bytes;
    it = overlaps ? memories.erase(it) : std::next(it);
  }
  memories[begin] = {.bytes = bytes, .gpu = gpu};
}

template <typename Handle>
Handle NewHandle() {
  return reinterpret_cast<Handle>(++last_handle);
}

// ---- Kernels

template <typename Body>
bool RunKernel(const std::string& name, void** arguments, size_t threads,
               cudaStream_t stream) {
  const std::string body_name =
      abi::__cxa_demangle(typeid(Body).name(), nullptr, nullptr, nullptr);
  if (name.find("<" + body_name + ">") == std::string::npos &&
      name.find("<" + body_name + " >") == std::string::npos) {
    return false;
  }
  Put(stream, [body = *static_cast<const Body*>(arguments[0]),
               sweep = *static_cast<const Sweep*>(arguments[1]), threads] {
    for (size_t thread = 0; thread < threads; ++thread)
      sweep.Run(body, thread, threads);
    return true;
  });
  return true;
}

bool RunAnyKernel(const std::string& name, void** arguments, size_t threads,
                  cudaStream_t stream) {
  bool ran = false;
  for (const optim::Rule rule : optim::kRules) {
    optim::scalar::WithFormula(rule, [&](auto formula) {
      ran = ran || RunKernel<optim::UpdateBody<decltype(formula)>>(
                       name, arguments, threads, stream);
    });
  }
  return ran ||
         RunKernel<optim::FiniteBody>(name, arguments, threads, stream) ||
         RunKernel<RoundBody<HalfType::kBfloat16>>(name, arguments, threads,
                                                   stream) ||
         RunKernel<RoundBody<HalfType::kFloat16>>(name, arguments, threads,
                                                  stream);
}

}  // namespace

void Put(cudaStream_t stream, std::function<bool()> operation) {
  const Lock lock(mutex);
  streams[stream].push_back({.run = std::move(operation)});
}

void CheckOnGpu(const void* begin, size_t bytes) {
  const Lock lock(mutex);
  if (Find(begin, bytes) == nullptr) Die("that memory is not a GPU's");
}

}  // namespace slackline::simulated

using namespace slackline::simulated;  // NOLINT: what follows is CUDA's.

extern "C" {

void slackline_simulated_take(const void* begin, size_t bytes, int gpu) {
  const Lock lock(mutex);
  Take(begin, bytes, gpu);
}
void slackline_simulated_run(cudaStream_t stream) {
  const Lock lock(mutex);
  RunAll(stream);
}
void slackline_simulated_copy_to_host_takes(int ms) {
  const Lock lock(mutex);
  copy_to_host = std::chrono::milliseconds(ms);
}
long slackline_simulated_operations() {
  const Lock lock(mutex);
  return operations;
}

// ---- Devices and errors

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kGpus;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= kGpus) return cudaErrorInvalidDevice;
  current_gpu = gpu;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* gpu) {
  *gpu = current_gpu;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "simulated"; }
const char* cudaGetErrorString(cudaError_t) { return "a simulated error"; }

// ---- Streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  const Lock lock(mutex);
  *stream = NewHandle<cudaStream_t>();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream,
                                         unsigned int flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  slackline_simulated_run(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock(mutex);
  RunSome();
  return streams[stream].empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  const Lock lock(mutex);
  *event = NewHandle<cudaEvent_t>();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex);
  events[event].stream = stream;
  const uint64_t record = ++events[event].recorded;
  Put(stream, [event, record] {
    events[event].done = std::max(events[event].done, record);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int) {
  const Lock lock(mutex);
  if (events[event].recorded == 0) return cudaSuccess;
  streams[stream].push_back(
      {.run = nullptr, .event = event, .record = events[event].recorded});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(mutex);
  RunSome();
  return events[event].done < events[event].recorded ? cudaErrorNotReady
                                                     : cudaSuccess;
}

// ---- Memory

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock lock(mutex);
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xff, bytes);
  Take(*memory, bytes, current_gpu);
  return cudaSuccess;
}
// Waits for the GPU, as CUDA's does.
cudaError_t cudaFree(void* memory) {
  const Lock lock(mutex);
  for (const auto& [stream, queue] : streams) RunAll(stream);
  memories.erase(static_cast<const char*>(memory));
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) {
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(*memory, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  const Lock lock(mutex);
  const char* const fails_at = std::getenv("SIMULATED_CUDA_FAILS_AT");
  if (fails_at != nullptr && ++copies >= std::atol(fails_at))
    return cudaErrorLaunchFailure;
  if (kind != cudaMemcpyDeviceToHost) CheckOnGpu(to, bytes);
  if (kind != cudaMemcpyHostToDevice) CheckOnGpu(from, bytes);
  using Clock = std::chrono::steady_clock;
  const auto takes =
      kind == cudaMemcpyDeviceToHost ? copy_to_host : Clock::duration::zero();
  Put(stream, [=, begun = std::optional<Clock::time_point>()]() mutable {
    if (!begun.has_value()) begun = Clock::now();
    if (Clock::now() < *begun + takes) return false;
    std::memcpy(to, from, bytes);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t stream) {
  CheckOnGpu(to, bytes);
  Put(stream, [=] {
    std::memset(to, value, bytes);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* address) {
  const Lock lock(mutex);
  const Memory* const memory = Find(address, 1);
  attributes->type =
      memory != nullptr ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->device = memory != nullptr ? memory->gpu : -1;
  return cudaSuccess;
}

// ---- Kernels, as nvcc's code announces and launches them

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host_function, char*,
                            const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const Lock lock(mutex);
  int status = 0;
  char* const demangled = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  kernels[host_function] = status == 0 ? demangled : name;
  std::free(demangled);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 blocks, dim3 threads,
                             void** arguments, size_t, cudaStream_t stream) {
  const Lock lock(mutex);
  const size_t all = size_t{blocks.x} * threads.x;
  if (!RunAnyKernel(kernels[function], arguments, all, stream))
    Die(("there is no kernel " + kernels[function]).c_str());
  return cudaSuccess;
}

}  // extern "C"
