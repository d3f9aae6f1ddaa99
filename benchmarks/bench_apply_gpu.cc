// How near to a GPU's memory bandwidth is each optimizer's update on it?
//
// An update in place of one parameter with S floats of state from W gradients
// reads 1 + S + W floats and writes 1 + S, as on the CPU (bench_apply.cc): 12
// bytes for sgd with one gradient, 28 for adam.
//
// The limit is cudaMemcpyAsync within the GPU's memory that reads and writes as
// many bytes together, so copies half as many. Both are timed by events on the
// stream, in turn in every repeat, and the ratio is taken within the repeat.
//
// Before anything is timed, the first update has to leave the bits that the CPU
// leaves. Small arrays stay in the GPU's cache, and show what a launch costs.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/report.h"
#include "common/cuda/cuda_status.h"
#include "common/optim/optimizer.h"
#include "common/optim/optimizer_cuda.h"
#include "common/rng.h"
#include "common/status.h"
#include "google/protobuf/text_format.h"

namespace slackline::bench {
namespace {

const std::vector<std::string> kOptimizers = {"sgd",     "momentum", "nesterov",
                                              "adagrad", "adam",     "adamw"};

struct Options {
  std::vector<std::string> optimizers = kOptimizers;
  std::vector<size_t> gradients = {1, 4};
  std::vector<size_t> elements = {size_t{1} << 20, size_t{1} << 26};
  int repeats = 15;
  uint64_t seed = 1;
  bool smoke = false;
};

struct Case {
  std::string optimizer;
  size_t gradients = 0;
  size_t elements = 0;
};

constexpr float kRate = 0.01f;

// A benchmark has nothing better to do with an error than to end.
void Check(cudaError_t error, const char* call) {
  const absl::Status status = CudaStatus(error, call);
  SL_CHECK(status.ok(), status.ToString());
}

void Check(const absl::Status& status) {
  SL_CHECK(status.ok(), status.ToString());
}

Optimizer Make(const std::string& name) {
  config::Optimizer config;
  SL_CHECK(google::protobuf::TextFormat::ParseFromString(
               absl::StrCat(name, " { learning_rate: ", kRate, " }"), &config),
           name);
  absl::StatusOr<Optimizer> optimizer = Optimizer::Create(config);
  SL_CHECK(optimizer.ok(), optimizer.status().ToString());
  return *std::move(optimizer);
}

// The same floats on both sides.
class Array {
 public:
  explicit Array(size_t elements) : host_(elements) {
    void* device = nullptr;
    Check(cudaMalloc(&device, bytes()), "cudaMalloc");
    device_.reset(static_cast<float*>(device));
  }
  size_t bytes() const { return host_.size() * sizeof(float); }
  float* host() { return host_.data(); }
  float* device() const { return device_.get(); }
  void ToDevice() {
    Check(cudaMemcpy(device(), host(), bytes(), cudaMemcpyHostToDevice),
          "cudaMemcpy to the GPU");
  }
  bool SameOnDevice() const {
    std::vector<float> copy(host_.size());
    Check(cudaMemcpy(copy.data(), device(), bytes(), cudaMemcpyDeviceToHost),
          "cudaMemcpy from the GPU");
    return std::memcmp(copy.data(), host_.data(), bytes()) == 0;
  }

 private:
  struct Free {
    void operator()(float* device) const { cudaFree(device); }
  };
  std::vector<float> host_;
  std::unique_ptr<float, Free> device_;
};

// Time on a stream, by its own clock.
class Stopwatch {
 public:
  Stopwatch() {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
          "cudaStreamCreateWithFlags");
    Check(cudaEventCreate(&start_), "cudaEventCreate");
    Check(cudaEventCreate(&stop_), "cudaEventCreate");
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
    cudaStreamDestroy(stream_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  cudaStream_t stream() const { return stream_; }
  template <typename Work>
  double SecondsOf(const Work& work) {
    Check(cudaEventRecord(start_, stream_), "cudaEventRecord");
    work();
    Check(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    Check(cudaEventSynchronize(stop_), "cudaEventSynchronize");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, start_, stop_),
          "cudaEventElapsedTime");
    return 1e-3 * milliseconds;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

std::string GpuName() {
  int device = 0;
  cudaDeviceProp properties;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  Check(cudaGetDeviceProperties(&properties, device),
        "cudaGetDeviceProperties");
  return properties.name;
}

// False if the first update is not that of the CPU: nothing is timed then.
bool Measure(const Options& options, const Case& c) {
  const Optimizer optimizer = Make(c.optimizer);
  const size_t slots = optimizer.slot_count();
  std::vector<Array> arrays;  // The parameters, the slots, the gradients.
  for (size_t k = 0; k < 1 + slots + c.gradients; ++k) {
    arrays.emplace_back(c.elements);
  }
  Rng rng(options.seed);
  for (size_t k = 0; k < arrays.size(); ++k) {
    if (k == 0 || k > slots) {
      for (size_t i = 0; i < c.elements; ++i) {
        arrays[k].host()[i] = static_cast<float>(2 * rng.Uniform() - 1);
      }
    }
    arrays[k].ToDevice();
  }
  // `at` gives an array's address on the side that is to update it.
  const auto args_at = [&](auto at, std::vector<const std::byte*>* gradients) {
    Optimizer::ApplyArgs args;
    args.in = args.out = at(arrays[0]);
    for (size_t k = 0; k < slots; ++k) args.slots[k] = at(arrays[1 + k]);
    for (size_t k = 0; k < c.gradients; ++k) {
      gradients->push_back(
          reinterpret_cast<const std::byte*>(at(arrays[1 + slots + k])));
    }
    args.gradients = *gradients;
    args.elements = c.elements;
    args.gradient_scale = 1.0f / static_cast<float>(c.gradients);
    args.numbers.learning_rate = kRate;
    return args;
  };
  std::vector<const std::byte*> host_gradients, device_gradients;
  const Optimizer::ApplyArgs host_args =
      args_at([](Array& array) { return array.host(); }, &host_gradients);
  Optimizer::ApplyArgs args =
      args_at([](Array& array) { return array.device(); }, &device_gradients);

  Stopwatch stopwatch;
  optimizer.Apply(host_args);
  Check(ApplyAsync(optimizer, args, stopwatch.stream()));
  Check(cudaStreamSynchronize(stopwatch.stream()), "cudaStreamSynchronize");
  for (size_t k = 0; k < arrays.size(); ++k) {
    if (arrays[k].SameOnDevice()) continue;
    std::fprintf(stderr,
                 "%s, %zu gradients, %zu elements: array %zu has other bits "
                 "after the first update than on the CPU\n",
                 c.optimizer.c_str(), c.gradients, c.elements, k);
    return false;
  }
  const std::string checksum = Checksum(host_args.out, arrays[0].bytes());

  const size_t bytes_per_parameter =
      sizeof(float) * (2 + 2 * slots + c.gradients);
  const size_t bytes = bytes_per_parameter * c.elements;
  void* source = nullptr;
  void* target = nullptr;
  Check(cudaMalloc(&source, bytes / 2), "cudaMalloc");
  Check(cudaMalloc(&target, bytes / 2), "cudaMalloc");
  Check(cudaMemset(source, 0, bytes / 2), "cudaMemset");

  // Enough work in one sample for the clock.
  const size_t rounds =
      options.smoke ? 1 : std::max<size_t>(1, (size_t{1} << 27) / c.elements);
  const auto apply = [&] {
    for (size_t round = 0; round < rounds; ++round) {
      ++args.update_count;
      Check(ApplyAsync(optimizer, args, stopwatch.stream()));
    }
  };
  const auto copy = [&] {
    for (size_t round = 0; round < rounds; ++round) {
      Check(cudaMemcpyAsync(target, source, bytes / 2, cudaMemcpyDeviceToDevice,
                            stopwatch.stream()),
            "cudaMemcpyAsync");
    }
  };
  stopwatch.SecondsOf(apply);
  stopwatch.SecondsOf(copy);
  const double gigabytes = 1e-9 * static_cast<double>(bytes * rounds);
  std::vector<double> apply_rates, copy_rates, ratios, micros;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    double apply_seconds = 0, copy_seconds = 0;
    if (repeat % 2 == 0) {
      apply_seconds = stopwatch.SecondsOf(apply);
      copy_seconds = stopwatch.SecondsOf(copy);
    } else {
      copy_seconds = stopwatch.SecondsOf(copy);
      apply_seconds = stopwatch.SecondsOf(apply);
    }
    apply_rates.push_back(gigabytes / apply_seconds);
    copy_rates.push_back(gigabytes / copy_seconds);
    ratios.push_back(copy_seconds / apply_seconds);
    micros.push_back(1e6 * apply_seconds / static_cast<double>(rounds));
  }
  cudaFree(source);
  cudaFree(target);

  const Spread apply_rate = SpreadOf(apply_rates);
  const Spread copy_rate = SpreadOf(copy_rates);
  const Spread ratio = SpreadOf(ratios);
  std::fprintf(
      stderr, "%-9s %9zu %9zu %8zu %11.1f %11.1f %9.3f %7.3f .. %.3f\n",
      c.optimizer.c_str(), c.gradients, c.elements, bytes_per_parameter,
      apply_rate.median, copy_rate.median, ratio.median, ratio.min, ratio.max);
  nlohmann::ordered_json line;
  line["gpu"] = GpuName();
  line["cuda_runtime"] = CUDART_VERSION;
  line["optimizer"] = c.optimizer;
  line["gradients"] = c.gradients;
  line["elements"] = c.elements;
  line["bytes_per_parameter"] = bytes_per_parameter;
  line["repeats"] = options.repeats;
  line["updates_per_repeat"] = rounds;
  line["seed"] = options.seed;
  line["smoke"] = options.smoke;
  line["apply_gigabytes_per_second"] = ToJson(apply_rate);
  line["copy_gigabytes_per_second"] = ToJson(copy_rate);
  line["ratio_to_copy"] = ToJson(ratio);
  line["update_micros"] = ToJson(SpreadOf(micros));
  line["checksum"] = checksum;
  PrintJsonLine("apply_gpu", line);
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "How near to a GPU's memory bandwidth is each optimizer's update?");
  app.add_option("--optimizers", options.optimizers, "which to measure")
      ->delimiter(',')
      ->check(CLI::IsMember(kOptimizers))
      ->capture_default_str();
  app.add_option("--gradients", options.gradients, "summed in one update")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  auto* const elements =
      app.add_option("--elements", options.elements,
                     "parameters per update; each takes up to 68 bytes of "
                     "the GPU's memory (adam, 4 gradients)")
          ->delimiter(',')
          ->check(CLI::Range(1, 1 << 28))
          ->capture_default_str();
  auto* const repeats =
      app.add_option("--repeats", options.repeats, "timed pairs per case")
          ->check(CLI::Range(1, 1000))
          ->capture_default_str();
  app.add_option("--seed", options.seed, "of parameters and gradients")
      ->capture_default_str();
  app.add_flag("--smoke", options.smoke, "tiny: does it still work?")
      ->excludes(elements)
      ->excludes(repeats);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.smoke) {
    options.elements = {1003, 4096};
    options.repeats = 2;
  }

  int count = 0;
  const absl::Status found =
      CudaStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (!found.ok() || count == 0) {
    std::fprintf(stderr, "no GPU to run on: %s\n",
                 std::string(found.message()).c_str());
    // Not being able to measure is no failure of the smoke test.
    return options.smoke ? 0 : 1;
  }

  nlohmann::ordered_json parsed;
  parsed["optimizers"] = options.optimizers;
  parsed["gradients"] = options.gradients;
  parsed["elements"] = options.elements;
  parsed["repeats"] = options.repeats;
  parsed["seed"] = options.seed;
  parsed["smoke"] = options.smoke;
  std::fprintf(stderr, "options: %s\n", parsed.dump().c_str());
  std::fprintf(stderr, "%-9s %9s %9s %8s %11s %11s %9s %s\n", "optimizer",
               "gradients", "elements", "bytes/p", "apply GB/s", "copy GB/s",
               "ratio", "    min .. max");
  for (const size_t element_count : options.elements) {
    for (const size_t gradient_count : options.gradients) {
      for (const std::string& optimizer : options.optimizers) {
        if (!Measure(options, {.optimizer = optimizer,
                               .gradients = gradient_count,
                               .elements = element_count})) {
          return 1;
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
