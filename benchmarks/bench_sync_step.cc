// What does a synchronous step by all-reduce cost beyond its computation and
// the raw all-reduce of the same bytes?
//
// W ranks, processes on loopback with one compute thread each, train the MLP
// 784-512-512-10 (64 examples per rank, 2.7 MB of gradients) and ResNet-18
// (32x32 pictures, 8 per rank, 45 MB). In turn, in one run:
//
//   compute     forward, backward, optimizer; nobody talks
//   raw         Gloo's ring all-reduce of the step's buckets, nothing else
//   by hand     compute, then copies into buckets, then raw, then the optimizer
//   after       our step with all buckets issued when backward is done
//   overlapped  our step as the Trainer does it: a bucket leaves when it is
//   full
//
// Expected per step and rank: 2 (W - 1) / W of the gradients sent and received,
// one copy of them into the buckets. The target is that overlapped takes at
// most 1.05 times compute + raw. That sum leaves out that every step waits for
// its slowest rank; "by hand" has that too. Where ranks outnumber cores, or
// sending takes the core of the computation, overlap has little to gain.
//
// Verifies first: sums are exact, after, overlapped and eager end with the same
// parameters, bit for bit, and by hand with the same but for rounding.
//
// stdout: one JSON line per model and number of ranks. stderr: the same as a
// table.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/raw_gloo.h"
#include "benchmarks/report.h"
#include "benchmarks/resnet18.h"
#include "common/blas/open_blas.h"
#include "common/optim/optimizer.h"
#include "common/process/freed_memory.h"
#include "common/rng.h"
#include "common/status.h"
#include "common/view/initializer.h"
#include "worker/collective/gradient_buckets.h"
#include "worker/collective/tcp_collective.h"
#include "worker/model/compute.h"
#include "worker/model/model.h"

namespace slackline::bench {
namespace {

// Of a parameter, between two orders of the same sums.
constexpr float kRoundingMax = 1e-4f;

const std::vector<std::string> kVariants = {"compute", "raw",        "by hand",
                                            "after",   "overlapped", "eager"};

struct Options {
  std::vector<std::string> models = {"mlp", "resnet18"};
  std::vector<int> ranks = {2, 4};
  int mlp_steps = 40;
  int resnet18_steps = 4;
  int rounds = 7;
  int64_t bucket_kib = 4096;
  uint64_t seed = 1;
  bool smoke = false;
};

// One kind of model at one number of ranks.
struct Case {
  std::string model;
  int world_size = 0;
  int steps = 0;
};

// What a step needs of a model.
class Net {
 public:
  virtual ~Net() = default;
  virtual int tables() const = 0;
  virtual absl::Span<float> parameter(int table) = 0;
  virtual void ForwardBackward(int64_t step,
                               const Model::GradientReady& ready) = 0;
};

class MlpNet final : public Net {
 public:
  MlpNet(uint64_t seed, uint64_t data_seed, bool small) {
    config::Model config;
    for (int layer = 0; layer < 2; ++layer)
      config.mutable_mlp()->add_hidden(small ? 32 : 512);
    absl::StatusOr<std::unique_ptr<Model>> model =
        CreateModel(config, kFeatures, kClasses);
    SL_CHECK(model.ok(), model.status().ToString());
    model_ = *std::move(model);
    for (int t = 0; t < tables(); ++t)
      InitializeElements(model_->tables()[t], seed, 0, parameter(t));
    Rng rng(data_seed);
    for (float& input : inputs_)
      input = static_cast<float>(rng.Uniform() * 2 - 1);
    for (int64_t& label : labels_)
      label = static_cast<int64_t>(rng.Below(kClasses));
  }
  int tables() const override {
    return static_cast<int>(model_->tables().size());
  }
  absl::Span<float> parameter(int table) override {
    return model_->parameter(table);
  }
  void ForwardBackward(int64_t step,
                       const Model::GradientReady& ready) override {
    const int64_t first = step % kBatches * kBatch;
    const absl::StatusOr<double> loss =
        model_->ForwardBackward({.examples = kBatch,
                                 .inputs = inputs_.data() + first * kFeatures,
                                 .labels = labels_.data() + first},
                                ready);
    SL_CHECK(loss.ok(), loss.status().ToString());
  }

 private:
  static constexpr int64_t kFeatures = 784, kClasses = 10, kBatch = 64,
                           kBatches = 16;
  std::unique_ptr<Model> model_;
  std::vector<float> inputs_ =
      std::vector<float>(kBatches * kBatch * kFeatures);
  std::vector<int64_t> labels_ = std::vector<int64_t>(kBatches * kBatch);
};

class Resnet18Net final : public Net {
 public:
  Resnet18Net(uint64_t seed, uint64_t data_seed)
      : resnet_({.batches = 4, .seed = seed, .data_seed = data_seed}) {}
  int tables() const override { return resnet_.tables(); }
  absl::Span<float> parameter(int table) override {
    return resnet_.parameter(table);
  }
  void ForwardBackward(int64_t step,
                       const Model::GradientReady& ready) override {
    resnet_.ForwardBackward(step, ready);
  }

 private:
  Resnet18 resnet_;
};

// One rank of a case.
class Trainee {
 public:
  Trainee(const Options& options, const Case& what, int rank,
          const std::string& folder)
      : world_size_(what.world_size),
        raw_(rank, what.world_size, folder + "/raw"),
        optimizer_(CreateOptimizer()) {
    const uint64_t data_seed = options.seed + 1 + rank;
    if (what.model == "mlp") {
      net_ = std::make_unique<MlpNet>(options.seed, data_seed, options.smoke);
    } else {
      net_ = std::make_unique<Resnet18Net>(options.seed, data_seed);
    }
    GradientBuckets::Options bucket_options;
    bucket_options.bucket_bytes = options.bucket_kib * 1024;
    for (int t = 0; t < net_->tables(); ++t) {
      const absl::Span<float> parameter = net_->parameter(t);
      initial_.emplace_back(parameter.begin(), parameter.end());
      slots_.emplace_back(parameter.size());
      bucket_options.table_elements.push_back(parameter.size());
    }
    buckets_ = std::make_unique<GradientBuckets>(
        *GradientBuckets::Create(bucket_options));
    tables_of_bucket_.resize(buckets_->bucket_count());
    for (int t = 0; t < net_->tables(); ++t)
      tables_of_bucket_[buckets_->PlaceOf(TableId{t}).bucket].push_back(t);
    gradients_.resize(net_->tables());

    const std::unique_ptr<RendezvousStore> store = FileStore(folder + "/ours");
    absl::StatusOr<std::unique_ptr<Collective>> collective =
        CreateTcpCollective({.rank = Rank{rank},
                             .world_size = what.world_size,
                             .host = "127.0.0.1",
                             .group = "bench",
                             .timeout = absl::Seconds(60),
                             .store = store.get()});
    SL_CHECK(collective.ok(), collective.status().ToString());
    collective_ = *std::move(collective);
  }

  void Verify(int rank) {
    const auto fill = [&](std::vector<float>* data) {
      for (size_t i = 0; i < data->size(); ++i)
        (*data)[i] = static_cast<float>(i % 1000 + rank);
    };
    std::vector<float> raw(10007), ours(10007);
    fill(&raw);
    fill(&ours);
    raw_.AllReduce(absl::MakeSpan(raw));
    Wait(collective_->AllReduceAsync(absl::MakeSpan(ours)));
    for (size_t i = 0; i < raw.size(); ++i) {
      const int sum = world_size_ * static_cast<int>(i % 1000) +
                      world_size_ * (world_size_ - 1) / 2;
      SL_CHECK(raw[i] == sum && ours[i] == sum,
               absl::StrCat("all-reduce: element ", i, " is ", raw[i], " and ",
                            ours[i], ", the sum is ", sum));
    }
    const std::vector<float> after = ParametersOf("after");
    for (const std::string variant : {"overlapped", "eager"}) {
      const std::vector<float> same = ParametersOf(variant);
      SL_CHECK(std::memcmp(same.data(), after.data(),
                           after.size() * sizeof(float)) == 0,
               "the variants end with different parameters");
    }
    // Gloo cuts a buffer elsewhere, so the sums of more than two ranks differ
    // by rounding.
    const std::vector<float> by_hand = ParametersOf("by hand");
    for (size_t i = 0; i < after.size(); ++i) {
      SL_CHECK(std::abs(by_hand[i] - after[i]) <= kRoundingMax,
               absl::StrCat("parameter ", i, " is ", by_hand[i],
                            " by hand, ours is ", after[i]));
    }
  }

  // After three steps.
  std::vector<float> ParametersOf(const std::string& variant) {
    Reset();
    for (int step = 0; step < 3; ++step) Step(variant, step);
    return AllParameters();
  }

  struct Cost {
    double ms = 0;      // Per step, until all ranks are done.
    double cpu_ms = 0;  // Per step: processor time of all of its threads.
  };
  Cost Time(const std::string& variant, int steps) {
    Reset();
    if (variant == "raw") {  // Sums of sums would overflow.
      for (int b = 0; b < buckets_->bucket_count(); ++b)
        std::fill(buckets_->bucket(b).begin(), buckets_->bucket(b).end(), 0.0f);
    }
    Step(variant, 0);  // Warm-up.
    Barrier();
    const double cpu_start = CpuMilliseconds();
    const auto start = std::chrono::steady_clock::now();
    for (int step = 1; step <= steps; ++step) Step(variant, step);
    Barrier();
    const std::chrono::duration<double, std::milli> passed =
        std::chrono::steady_clock::now() - start;
    return {.ms = passed.count() / steps,
            .cpu_ms = (CpuMilliseconds() - cpu_start) / steps};
  }

  std::vector<float> AllParameters() {
    std::vector<float> all;
    for (int t = 0; t < net_->tables(); ++t) {
      const absl::Span<float> parameter = net_->parameter(t);
      all.insert(all.end(), parameter.begin(), parameter.end());
    }
    return all;
  }
  std::string ModelChecksum() {
    const std::vector<float> all = AllParameters();
    return Checksum(all.data(), all.size() * sizeof(float));
  }
  int64_t elements() const {
    int64_t sum = 0;
    for (const std::vector<float>& table : initial_) sum += table.size();
    return sum;
  }
  int buckets() const { return buckets_->bucket_count(); }

 private:
  static Optimizer CreateOptimizer() {
    config::Optimizer config;
    config.mutable_momentum()->set_learning_rate(kLearningRate);
    return *Optimizer::Create(config);
  }

  void Reset() {
    for (int t = 0; t < net_->tables(); ++t) {
      std::copy(initial_[t].begin(), initial_[t].end(),
                net_->parameter(t).begin());
      std::fill(slots_[t].begin(), slots_[t].end(), 0.0f);
    }
  }

  void Step(const std::string& variant, int64_t step) {
    if (variant == "compute") {
      net_->ForwardBackward(step, [&](int table, Payload gradient) {
        gradients_[table] = std::move(gradient);
      });
      for (int t = net_->tables(); t-- > 0;) {
        Apply(t, gradients_[t].data(), 1);
        gradients_[t] = Payload();
      }
    } else if (variant == "raw") {
      for (int b = 0; b < buckets_->bucket_count(); ++b)
        raw_.AllReduce(buckets_->bucket(b));
    } else if (variant == "by hand") {
      FillBuckets(step, [](int) {});
      for (int b = 0; b < buckets_->bucket_count(); ++b) {
        raw_.AllReduce(buckets_->bucket(b));
        ApplyBucket(b);
      }
    } else {
      tickets_.clear();
      const auto reduce = [&](int bucket) {
        tickets_.push_back(
            collective_->AllReduceAsync(buckets_->bucket(bucket)));
      };
      if (variant == "after") {
        FillBuckets(step, [](int) {});
        for (int b = 0; b < buckets_->bucket_count(); ++b) reduce(b);
      } else {
        FillBuckets(step, reduce);
      }
      for (int b = 0; b < buckets_->bucket_count(); ++b) {
        Wait(tickets_[b]);
        if (variant == "eager") ApplyBucket(b);
      }
      if (variant != "eager") {
        for (int b = 0; b < buckets_->bucket_count(); ++b) ApplyBucket(b);
      }
    }
  }
  void FillBuckets(int64_t step, const std::function<void(int)>& issue) {
    buckets_->BeginStep();
    net_->ForwardBackward(step, [&](int table, Payload gradient) {
      full_.clear();
      const absl::Status added =
          buckets_->Add(TableId{table}, gradient, &full_);
      SL_CHECK(added.ok(), added.ToString());
      for (const int bucket : full_) issue(bucket);
    });
  }
  void ApplyBucket(int bucket) {
    for (const int t : tables_of_bucket_[bucket]) {
      Apply(t,
            reinterpret_cast<const std::byte*>(
                buckets_->Gradient(TableId{t}).data()),
            world_size_);
    }
  }
  void Apply(int table, const std::byte* gradient, int count) {
    const absl::Span<float> parameter = net_->parameter(table);
    Optimizer::ApplyArgs args;
    args.in = args.out = parameter.data();
    args.slots[0] = slots_[table].data();
    args.gradients = absl::MakeConstSpan(&gradient, 1);
    args.elements = parameter.size();
    args.gradient_scale = 1.0f / static_cast<float>(count);
    args.numbers.learning_rate = kLearningRate;
    optimizer_.Apply(args);
  }
  void Wait(Collective::Ticket ticket) {
    const absl::Status reduced = collective_->Wait(ticket);
    SL_CHECK(reduced.ok(), reduced.ToString());
  }
  static double CpuMilliseconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return 1e3 * (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-3 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  }
  void Barrier() {
    float nothing = 0;
    raw_.AllReduce(absl::MakeSpan(&nothing, 1));
  }

  static constexpr float kLearningRate = 0.001f;
  const int world_size_;
  RawGloo raw_;
  const Optimizer optimizer_;
  std::unique_ptr<Net> net_;
  std::vector<std::vector<float>> initial_;
  std::vector<std::vector<float>> slots_;
  std::vector<Payload> gradients_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::vector<std::vector<int>> tables_of_bucket_;
  std::vector<Collective::Ticket> tickets_;
  std::vector<int> full_;
  std::unique_ptr<Collective> collective_;
};

// What a rank tells the parent, by name: each fits into one write to a pipe.
void Tell(int pipe, const nlohmann::json& what) {
  const std::string line = what.dump() + "\n";
  SL_CHECK(write(pipe, line.data(), line.size()) ==
               static_cast<ssize_t>(line.size()),
           "write");
}

void RunRank(const Options& options, const Case& what, int rank,
             const std::string& folder, int pipe) {
  KeepFreedMemory();  // For all variants, as Slackline's programs do.
  (void)ChooseOpenBlasKernels();  // As workers do.
  const absl::Status threads = SetComputeThreads(1);
  SL_CHECK(threads.ok(), threads.ToString());
  Trainee trainee(options, what, rank, folder);
  trainee.Verify(rank);
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < kVariants.size(); ++i) {
      // Each variant comes after each other one.
      const std::string& variant = kVariants[(i + round) % kVariants.size()];
      const Trainee::Cost cost = trainee.Time(variant, what.steps);
      if (rank == 0) {
        Tell(pipe,
             {{"variant", variant}, {"ms", cost.ms}, {"cpu_ms", cost.cpu_ms}});
      }
      if (variant == "overlapped" && round + 1 == options.rounds)
        Tell(pipe, {{"checksum", trainee.ModelChecksum()}});
    }
  }
  if (rank == 0) {
    Tell(pipe,
         {{"elements", trainee.elements()}, {"buckets", trainee.buckets()}});
  }
}

struct Results {
  std::map<std::string, std::vector<double>> ms;      // By variant and round.
  std::map<std::string, std::vector<double>> cpu_ms;  // Of rank 0.
  std::string checksum;
  int64_t elements = 0;
  int buckets = 0;
};

// Processes rather than threads, because workers are. Forks before LibTorch has
// started any thread.
Results RunCase(const Options& options, const Case& what) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      absl::StrCat("slackline-bench-sync-step-", getpid(), "-", what.model, "-",
                   what.world_size);
  for (const char* group : {"raw", "ours"})
    std::filesystem::create_directories(folder / group);
  int told[2];
  SL_CHECK(pipe(told) == 0, "pipe");
  std::vector<pid_t> children;
  for (int rank = 0; rank < what.world_size; ++rank) {
    const pid_t pid = fork();
    SL_CHECK(pid >= 0, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(told[0]);
      RunRank(options, what, rank, folder.string(), told[1]);
      _exit(0);
    }
    children.push_back(pid);
  }
  close(told[1]);
  Results results;
  FILE* const lines = fdopen(told[0], "r");
  char line[512];
  while (std::fgets(line, sizeof(line), lines) != nullptr) {
    const nlohmann::json news = nlohmann::json::parse(line);
    if (news.contains("ms")) {
      results.ms[news["variant"]].push_back(news["ms"]);
      results.cpu_ms[news["variant"]].push_back(news["cpu_ms"]);
    }
    if (news.contains("elements")) {
      results.elements = news["elements"];
      results.buckets = news["buckets"];
    }
    if (news.contains("checksum")) {
      SL_CHECK(results.checksum.empty() || results.checksum == news["checksum"],
               "the ranks ended with different parameters");
      results.checksum = news["checksum"];
    }
  }
  std::fclose(lines);
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    SL_CHECK(status == 0, "a rank failed");
  }
  std::filesystem::remove_all(folder);
  return results;
}

// Of one round's figures, over the rounds.
Spread RatioOf(const Results& results,
               const std::function<double(
                   const std::function<double(const std::string&)>&)>& ratio) {
  std::vector<double> ratios;
  for (size_t round = 0; round < results.ms.at("raw").size(); ++round) {
    ratios.push_back(ratio([&](const std::string& variant) {
      return results.ms.at(variant)[round];
    }));
  }
  return SpreadOf(std::move(ratios));
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "A synchronous step by all-reduce over tcp, against its computation "
      "plus Gloo's all-reduce of the same bytes.");
  app.add_option("--models", options.models)
      ->delimiter(',')
      ->check(CLI::IsMember({"mlp", "resnet18"}))
      ->capture_default_str();
  app.add_option("--ranks", options.ranks)
      ->delimiter(',')
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--mlp-steps", options.mlp_steps, "of each variant and round")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--resnet18-steps", options.resnet18_steps,
                 "of each variant and round")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--bucket-kib", options.bucket_kib,
                 "as sync { collective { bucket_kib } }")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--smoke", options.smoke,
               "2 ranks, small, few steps: to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.smoke) {
    options.ranks = {2};
    options.mlp_steps = 2;
    options.resnet18_steps = 1;
    options.rounds = 1;
  }
  std::fprintf(stderr, "%-9s %5s", "model", "ranks");
  for (const std::string& variant : kVariants)
    std::fprintf(stderr, " %10s", variant.c_str());
  std::fprintf(stderr,
               "  after  overlapped  by hand  gain   (ms per step; "
               "ratios to compute + raw; after / overlapped)\n");
  for (const std::string& model : options.models) {
    for (const int world_size : options.ranks) {
      const Case what{
          .model = model,
          .world_size = world_size,
          .steps = model == "mlp" ? options.mlp_steps : options.resnet18_steps};
      const Results results = RunCase(options, what);
      const auto to_sum = [&](const std::string& variant) {
        return RatioOf(results, [&](const auto& ms) {
          return ms(variant) / (ms("compute") + ms("raw"));
        });
      };
      const Spread gain = RatioOf(results, [](const auto& ms) {
        return ms("after") / ms("overlapped");
      });
      const Spread to_by_hand = RatioOf(results, [](const auto& ms) {
        return ms("overlapped") / ms("by hand");
      });
      const Spread to_eager = RatioOf(results, [](const auto& ms) {
        return ms("overlapped") / ms("eager");
      });
      nlohmann::ordered_json ms_per_step, cpu_ms_per_step;
      for (const std::string& variant : kVariants) {
        ms_per_step[variant] = ToJson(SpreadOf(results.ms.at(variant)));
        cpu_ms_per_step[variant] = SpreadOf(results.cpu_ms.at(variant)).median;
      }
      const double bytes = static_cast<double>(results.elements) * 4;
      const double raw_ms = SpreadOf(results.ms.at("raw")).median;
      PrintJsonLine("bench_sync_step",
                    {{"model", model},
                     {"transport", "tcp loopback"},
                     {"ranks", world_size},
                     {"parameters", results.elements},
                     {"buckets", results.buckets},
                     {"bucket_kib", options.bucket_kib},
                     {"steps", what.steps},
                     {"rounds", options.rounds},
                     {"seed", options.seed},
                     {"ms_per_step", ms_per_step},
                     {"cpu_ms_per_step_of_rank_0", cpu_ms_per_step},
                     {"raw_gigabytes_per_second", bytes / raw_ms / 1e6},
                     {"raw_bus_gigabytes_per_second",
                      bytes / raw_ms / 1e6 * 2 * (world_size - 1) / world_size},
                     {"after_to_sum", ToJson(to_sum("after"))},
                     {"overlapped_to_sum", ToJson(to_sum("overlapped"))},
                     {"by_hand_to_sum", ToJson(to_sum("by hand"))},
                     {"overlapped_to_by_hand", ToJson(to_by_hand)},
                     {"overlapped_to_eager", ToJson(to_eager)},
                     {"overlap_gain", ToJson(gain)},
                     {"checksum", results.checksum}});
      std::fprintf(stderr, "%-9s %5d", model.c_str(), world_size);
      for (const std::string& variant : kVariants)
        std::fprintf(stderr, " %10.2f",
                     SpreadOf(results.ms.at(variant)).median);
      std::fprintf(stderr, "  %5.3f  %10.3f  %7.3f  %5.3f\n",
                   to_sum("after").median, to_sum("overlapped").median,
                   to_sum("by hand").median, gain.median);
      std::fprintf(stderr, "%15s", "processor time");
      for (const std::string& variant : kVariants)
        std::fprintf(stderr, " %10.2f", double{cpu_ms_per_step[variant]});
      std::fprintf(stderr, "\n");
    }
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
