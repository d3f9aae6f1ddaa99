// How near to memory bandwidth is each optimizer's apply? And what does it cost
// to look for NaNs first, or for NaNs and the size of a gradient?
//
// An update in place of one parameter with S floats of state from W gradients
// reads 1 + S + W floats and writes 1 + S, so it costs 4 (2 + 2 S + W) bytes:
//
//              S   W = 1   W = 4
//   sgd        0   12      24
//   momentum   1   20      32    (also nesterov, adagrad)
//   adam       2   28      40    (also adamw)
//
// These are the bytes that the program asks for. In place there are no others:
// no line is written that was not read, so nothing is fetched to be
// overwritten.
//
// The limit is a triad over the same arrays with the same reads and writes:
// each of the 1 + S arrays becomes itself plus a constant times the sum of the
// W gradients. Both run in turn in every repeat, and the ratio is taken within
// the repeat, so that noise of the machine meets both. The constant of the
// triad is 0 (which the compiler does not know), so that it leaves the state
// alone.
//
// Small arrays show what the arithmetic costs when memory is near.
//
// A server looks at each gradient for NaNs and infinities before it applies it,
// in a pass of its own that reads 4 W bytes, shard by shard: the update finds
// in the cache what the check has read. `checked` is the time of both, in
// shards of 2^16 elements (256 KiB, the default), over the time of the update
// alone, taken in the same repeat. `bounded` is the same with train {
// gradient_bound }, where one pass finds NaNs and the sum of squares.
//
// Times are processor time of the only thread, which others on the machine
// change less than they change the time on the wall.
#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "benchmarks/bench_apply.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <size_t kWritten, size_t kGradients>
void Triad(float* const* written, const float* const* gradients,
           size_t elements, float factor) {
  const HWY_FULL(float) d;
  const auto scale = hn::Set(d, factor);
  std::array<float*, kWritten> out;
  std::array<const float*, kGradients> in;
  std::copy_n(written, kWritten, out.begin());
  std::copy_n(gradients, kGradients, in.begin());
  for (size_t i = 0; i + hn::Lanes(d) <= elements; i += hn::Lanes(d)) {
    auto sum = hn::LoadU(d, in[0] + i);
    for (size_t k = 1; k < kGradients; ++k) {
      sum = hn::Add(sum, hn::LoadU(d, in[k] + i));
    }
    for (size_t k = 0; k < kWritten; ++k) {
      hn::StoreU(hn::MulAdd(scale, sum, hn::LoadU(d, out[k] + i)), d,
                 out[k] + i);
    }
  }
}

template <size_t kGradients>
void TriadOf(float* const* written, size_t written_count,
             const float* const* gradients, size_t elements, float factor) {
  if (written_count == 1) {
    Triad<1, kGradients>(written, gradients, elements, factor);
  } else if (written_count == 2) {
    Triad<2, kGradients>(written, gradients, elements, factor);
  } else {
    Triad<3, kGradients>(written, gradients, elements, factor);
  }
}

// `written_count` is 1, 2 or 3; `gradient_count` 1 or 4.
void RunTriad(float* const* written, size_t written_count,
              const float* const* gradients, size_t gradient_count,
              size_t elements, float factor) {
  if (gradient_count == 1) {
    TriadOf<1>(written, written_count, gradients, elements, factor);
  } else {
    TriadOf<4>(written, written_count, gradients, elements, factor);
  }
}

const char* InstructionSet() { return hwy::TargetName(HWY_TARGET); }

}  // namespace slackline::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <CLI/CLI.hpp>

#include "benchmarks/report.h"
#include "common/optim/gradient_bound.h"
#include "common/optim/optimizer.h"
#include "common/payload.h"
#include "common/rng.h"
#include "common/status.h"

namespace slackline::bench {
namespace {

HWY_EXPORT(RunTriad);
HWY_EXPORT(InstructionSet);

const std::vector<std::string> kOptimizers = {"sgd",     "momentum", "nesterov",
                                              "adagrad", "adam",     "adamw"};

struct Options {
  std::vector<std::string> optimizers = kOptimizers;
  std::vector<size_t> gradients = {1, 4};
  std::vector<size_t> elements = {size_t{1} << 16, size_t{1} << 24};
  int repeats = 15;
  uint64_t seed = 1;
  bool smoke = false;
};

struct Case {
  std::string optimizer;
  size_t gradients = 0;
  size_t elements = 0;
};

constexpr size_t kShardElements = size_t{1} << 16;
constexpr double kRate = 0.01;
constexpr double kMomentum = 0.9;
constexpr double kEpsilon = 1e-8;
constexpr double kDecay = 0.01;

Optimizer Make(const std::string& name) {
  config::Optimizer config;
  if (name == "sgd") {
    config.mutable_sgd()->set_learning_rate(kRate);
  } else if (name == "momentum") {
    config.mutable_momentum()->set_learning_rate(kRate);
    config.mutable_momentum()->set_momentum(kMomentum);
  } else if (name == "nesterov") {
    config.mutable_nesterov()->set_learning_rate(kRate);
    config.mutable_nesterov()->set_momentum(kMomentum);
  } else if (name == "adagrad") {
    config.mutable_adagrad()->set_learning_rate(kRate);
    config.mutable_adagrad()->set_epsilon(kEpsilon);
  } else if (name == "adam") {
    config.mutable_adam()->set_learning_rate(kRate);
    config.mutable_adam()->set_epsilon(kEpsilon);
  } else {
    config.mutable_adamw()->set_learning_rate(kRate);
    config.mutable_adamw()->set_epsilon(kEpsilon);
    config.mutable_adamw()->set_weight_decay(kDecay);
  }
  absl::StatusOr<Optimizer> optimizer = Optimizer::Create(config);
  SL_CHECK(optimizer.ok(), optimizer.status().ToString());
  return *std::move(optimizer);
}

// The first update from a state of zeros has a closed form.
double FirstUpdate(const std::string& optimizer, double p, double g) {
  if (optimizer == "sgd" || optimizer == "momentum") return p - kRate * g;
  if (optimizer == "nesterov") return p - kRate * (1 + kMomentum) * g;
  if (optimizer == "adamw") p *= 1 - kRate * kDecay;
  return p - kRate * g / (std::fabs(g) + kEpsilon);
}

// Arrays from the allocator that the servers use.
class Array {
 public:
  explicit Array(size_t elements)
      : payload_(Payload::Allocate(elements * sizeof(float))),
        floats_(reinterpret_cast<float*>(payload_.MutableData())) {
    std::fill_n(floats_, elements, 0.0f);
  }
  float* floats() const { return floats_; }
  const std::byte* bytes() const { return payload_.data(); }

 private:
  Payload payload_;
  float* floats_;
};

double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

// False if the first update is wrong: nothing is timed then.
bool Measure(const Options& options, const Case& c) {
  const Optimizer optimizer = Make(c.optimizer);
  const size_t slots = optimizer.slot_count();
  std::vector<Array> written;  // The parameters, then the slots.
  for (size_t k = 0; k < 1 + slots; ++k) written.emplace_back(c.elements);
  std::vector<Array> gradients;
  for (size_t k = 0; k < c.gradients; ++k) gradients.emplace_back(c.elements);

  Rng rng(options.seed);
  const auto fill = [&](const Array& array) {
    for (size_t i = 0; i < c.elements; ++i) {
      array.floats()[i] = static_cast<float>(2 * rng.Uniform() - 1);
    }
  };
  fill(written[0]);
  for (const Array& gradient : gradients) fill(gradient);

  std::vector<float*> written_floats;
  for (const Array& array : written) written_floats.push_back(array.floats());
  std::vector<const float*> gradient_floats;
  std::vector<const std::byte*> gradient_bytes;
  for (const Array& array : gradients) {
    gradient_floats.push_back(array.floats());
    gradient_bytes.push_back(array.bytes());
  }

  Optimizer::ApplyArgs args;
  args.in = args.out = written_floats[0];
  for (size_t k = 0; k < slots; ++k) args.slots[k] = written_floats[1 + k];
  args.gradients = gradient_bytes;
  args.elements = c.elements;
  args.gradient_scale = 1.0f / static_cast<float>(c.gradients);
  args.numbers.learning_rate = static_cast<float>(kRate);

  const std::vector<float> before(args.in, args.in + c.elements);
  optimizer.Apply(args);
  for (size_t i = 0; i < c.elements; ++i) {
    double g = 0;
    for (const float* gradient : gradient_floats) g += gradient[i];
    g /= static_cast<double>(c.gradients);
    // A gradient near 0 comes out of large ones: rounding may turn its sign.
    if (std::fabs(g) < 1e-4) continue;
    const double expected = FirstUpdate(c.optimizer, before[i], g);
    if (!(std::fabs(args.out[i] - expected) <= 1e-5)) {
      std::fprintf(stderr,
                   "%s, %zu gradients: element %zu is %.9g after the first "
                   "update, %.9g is right\n",
                   c.optimizer.c_str(), c.gradients, i, args.out[i], expected);
      return false;
    }
  }
  const std::string checksum = Checksum(args.out, c.elements * sizeof(float));

  // Enough work in one sample for the clock.
  const size_t rounds =
      options.smoke ? 1 : std::max<size_t>(1, (size_t{1} << 24) / c.elements);
  volatile float zero = 0;
  const float factor = zero;
  const auto time_apply = [&] {
    const double start = CpuSeconds();
    for (size_t round = 0; round < rounds; ++round) {
      ++args.update_count;
      optimizer.Apply(args);
    }
    return CpuSeconds() - start;
  };
  const auto time_triad = [&] {
    const double start = CpuSeconds();
    for (size_t round = 0; round < rounds; ++round) {
      HWY_DYNAMIC_DISPATCH(RunTriad)
      (written_floats.data(), written_floats.size(), gradient_floats.data(),
       gradient_floats.size(), c.elements, factor);
    }
    return CpuSeconds() - start;
  };

  const size_t bytes_per_parameter =
      sizeof(float) * (2 + 2 * slots + c.gradients);
  const double gigabytes =
      1e-9 * static_cast<double>(bytes_per_parameter * c.elements * rounds);
  config::GradientBound bound_config;
  bound_config.set_rms(1e6);
  const GradientBound unbounded;
  const GradientBound bound(bound_config);
  const auto check_and_apply = [&](const GradientBound& check, size_t begin) {
    Optimizer::ApplyArgs shard = args;
    shard.in += begin;
    shard.out += begin;
    for (size_t k = 0; k < slots; ++k) shard.slots[k] += begin;
    shard.elements = std::min(kShardElements, c.elements - begin);
    std::vector<const std::byte*> parts = gradient_bytes;
    bool fit = true;
    for (const std::byte*& part : parts) {
      part += begin * sizeof(float);
      const std::optional<double> rms = check.Measure(part, shard.elements);
      fit = fit && rms.has_value() &&
            !check.Judge(*rms, RunningRms()).has_value();
    }
    SL_CHECK(fit, "a gradient became infinite or too large");
    shard.gradients = parts;
    optimizer.Apply(shard);
  };
  const auto time_checked = [&](const GradientBound& check) {
    const double start = CpuSeconds();
    for (size_t round = 0; round < rounds; ++round) {
      ++args.update_count;
      for (size_t begin = 0; begin < c.elements; begin += kShardElements)
        check_and_apply(check, begin);
    }
    return CpuSeconds() - start;
  };
  std::vector<double> apply_rates, triad_rates, ratios, checked_ratios,
      bounded_ratios;
  time_apply();
  time_triad();
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    double apply = 0, triad = 0, checked = 0, bounded = 0;
    if (repeat % 2 == 0) {
      apply = time_apply();
      checked = time_checked(unbounded);
      bounded = time_checked(bound);
      triad = time_triad();
    } else {
      triad = time_triad();
      bounded = time_checked(bound);
      checked = time_checked(unbounded);
      apply = time_apply();
    }
    checked_ratios.push_back(checked / apply);
    bounded_ratios.push_back(bounded / apply);
    apply_rates.push_back(gigabytes / apply);
    triad_rates.push_back(gigabytes / triad);
    ratios.push_back(triad / apply);
  }

  const Spread apply_rate = SpreadOf(apply_rates);
  const Spread triad_rate = SpreadOf(triad_rates);
  const Spread ratio = SpreadOf(ratios);
  const Spread checked = SpreadOf(checked_ratios);
  const Spread bounded = SpreadOf(bounded_ratios);
  std::fprintf(
      stderr,
      "%-9s %9zu %9zu %8zu %11.2f %11.2f %9.3f %7.3f .. %.3f %9.3f %7.3f .. "
      "%.3f %9.3f %7.3f .. %.3f\n",
      c.optimizer.c_str(), c.gradients, c.elements, bytes_per_parameter,
      apply_rate.median, triad_rate.median, ratio.median, ratio.min, ratio.max,
      checked.median, checked.min, checked.max, bounded.median, bounded.min,
      bounded.max);
  nlohmann::ordered_json line;
  line["optimizer"] = c.optimizer;
  line["gradients"] = c.gradients;
  line["elements"] = c.elements;
  line["bytes_per_parameter"] = bytes_per_parameter;
  line["repeats"] = options.repeats;
  line["updates_per_repeat"] = rounds;
  line["seed"] = options.seed;
  line["smoke"] = options.smoke;
  line["instruction_set"] = HWY_DYNAMIC_DISPATCH(InstructionSet)();
  line["apply_gigabytes_per_second"] = ToJson(apply_rate);
  line["triad_gigabytes_per_second"] = ToJson(triad_rate);
  line["ratio_to_triad"] = ToJson(ratio);
  line["checked_over_apply"] = ToJson(checked);
  line["bounded_over_apply"] = ToJson(bounded);
  line["checksum"] = checksum;
  PrintJsonLine("apply", line);
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("How near to memory bandwidth is each optimizer's apply?");
  app.add_option("--optimizers", options.optimizers, "which to measure")
      ->delimiter(',')
      ->check(CLI::IsMember(kOptimizers))
      ->capture_default_str();
  app.add_option("--gradients", options.gradients, "summed in one update")
      ->delimiter(',')
      ->check(CLI::IsMember({1, 4}))
      ->capture_default_str();
  auto* const elements =
      app.add_option("--elements", options.elements, "parameters per update")
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
  nlohmann::ordered_json parsed;
  parsed["optimizers"] = options.optimizers;
  parsed["gradients"] = options.gradients;
  parsed["elements"] = options.elements;
  parsed["repeats"] = options.repeats;
  parsed["seed"] = options.seed;
  parsed["smoke"] = options.smoke;
  std::fprintf(stderr, "options: %s\n", parsed.dump().c_str());

  std::fprintf(stderr, "%-9s %9s %9s %8s %11s %11s %9s %s %9s %s %9s %s\n",
               "optimizer", "gradients", "elements", "bytes/p", "apply GB/s",
               "triad GB/s", "ratio", "    min .. max  ", "checked",
               "    min .. max", "bounded", "    min .. max");
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

#endif  // HWY_ONCE
