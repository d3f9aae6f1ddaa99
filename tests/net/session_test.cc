// Goal: a program with parameters of its own gets through a job by the tasks of
// its session, over servers and by all-reduce: it sees the parameters that the
// gradients make, begins where the first worker begins, and is told by name
// what it does wrong. Method: a coordinator and servers in this process over
// memory, and a session for each worker on a thread of its own. The optimizer
// is SGD with rate 1 and all gradients are ones, so step c sees the initial
// values minus c. Where tables have optimizers of their own, the test computes
// with Optimizer what each step must see.
#include "worker/session/session.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/io/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tests/support/job_in_process.h"
#include "tests/support/memory_transport.h"
#include "tests/support/must.h"

namespace slackline::session_test {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kWorkers = 2;
constexpr Clock kSteps = 6;

Payload Filled(size_t elements, float value) {
  const std::vector<float> values(elements, value);
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}
Payload Ones(size_t elements) { return Filled(elements, 1); }

// A worker's program: two parameters in memory of its own.
struct Worker {
  explicit Worker(float begins_with)
      : weight(12, begins_with), bias(3, begins_with) {}

  HostParameters Parameters(wire::Initializer::Kind kind) {
    wire::Initializer initializer;
    initializer.set_kind(kind);
    initializer.set_a(10);
    return Must(HostParameters::Create({{.table = {.name = "weight",
                                                   .shape = {4, 3},
                                                   .initializer = initializer,
                                                   .optimizer = of_weight},
                                         .values = weight.data()},
                                        {.table = {.name = "bias",
                                                   .shape = {3},
                                                   .initializer = initializer,
                                                   .optimizer = of_bias},
                                         .values = bias.data()}}));
  }

  std::optional<config::Optimizer> of_weight, of_bias;  // Of their own.
  std::vector<float> weight;
  std::vector<float> bias;
  std::vector<Clock> steps;
  std::vector<float> seen;  // One number for each step: all elements have it.
  int conclusions = 0;
};

// Says how much was made in its memory.
class CountingTransport : public MemoryTransport {
 public:
  std::shared_ptr<PayloadMemory> memory() override { return memory_; }
  int made() const { return memory_->made.load(); }

 private:
  struct Memory : PayloadMemory {
    Payload Allocate(size_t bytes) override {
      ++made;
      return Payload::Allocate(bytes);
    }
    std::atomic<int> made{0};
  };
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest()
      : folder_(std::filesystem::temp_directory_path() /
                absl::StrCat("session_test.", getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~SessionTest() override { std::filesystem::remove_all(folder_); }

  void StartJob(
      const std::string& mode,
      const std::string& optimizer = "optimizer { sgd { learning_rate: 1 } }") {
    config_ = Must(ParseJobConfig(absl::StrCat(R"(
job: "job"
coordinator { host: "127.0.0.1" port: 7700 }
server { host: "127.0.0.1" }
worker { host: "127.0.0.1" count: )",
                                               kWorkers, R"( }
limits { lease_ms: 2000 }
sync { )",
                                               mode, " }\n", optimizer),
                                  "test.textproto"));
    shape_ = {.shard_elements = shard_elements_,
              .lease = absl::Seconds(2),
              .coordinator = "tcp://127.0.0.1:7700",
              .workers = kWorkers,
              .sync = config_.sync(),
              .config_hash = ConfigHash(config_),
              .optimizer = config_.optimizer(),
              .transport = transport_kind_};
    coordinator_ = StartCoordinator(shape_, transport_);
    server_ = std::make_unique<ServerInProcess>(shape_, 0, transport_);
  }

  Session::Options OptionsOf(int rank) {
    return {.config = config_,
            .rank = Rank{rank},
            .time = {},
            .out = folder_.string(),
            .length = length_,
            .batch_size = 8,
            .data = "ones"};
  }

  // Runs these programs beside each other, by rank, to their ends.
  using Program = std::function<absl::Status(Session&)>;
  std::vector<absl::Status> Run(std::vector<Worker>& workers,
                                wire::Initializer::Kind kind,
                                const std::vector<Program>& programs) {
    std::vector<absl::Status> ends(workers.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      threads.emplace_back([&, rank] {
        HostParameters parameters = workers[rank].Parameters(kind);
        const auto session =
            Must(Session::Create(OptionsOf(static_cast<int>(rank)), &parameters,
                                 transport_, transport_));
        ends[rank] = programs[rank](*session);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

  // What every program does that does nothing wrong.
  static absl::Status Train(Worker& worker, Session& session) {
    while (const std::optional<Session::Task> task = session.Next()) {
      if (const auto* const step = std::get_if<Session::Step>(&*task)) {
        worker.steps.push_back(step->clock);
        worker.seen.push_back(worker.bias[0]);
        EXPECT_THAT(worker.bias, Each(worker.bias[0]));
        EXPECT_THAT(worker.weight, Each(worker.bias[0]));
        EXPECT_TRUE(session.Gradient(1, Ones(3)).ok());
        EXPECT_TRUE(session.Gradient(0, Ones(12)).ok());
        EXPECT_TRUE(session.FinishStep(0.5).ok());
      } else if (std::holds_alternative<Session::Conclusion>(*task)) {
        ++worker.conclusions;
        EXPECT_TRUE(session.ReportProgress().ok());
        session.Conclude({.loss = 1, .accuracy = 0.5},
                         {.loss = 2, .accuracy = 0.25});
      }
    }
    return session.ending();
  }
  static Program Training(Worker& worker) {
    return [&worker](Session& session) { return Train(worker, session); };
  }

  const std::filesystem::path folder_;
  CountingTransport transport_;
  config::ClusterConfig config_;
  LearningRateSchedule::JobLength length_ = {.steps_total = kSteps,
                                             .steps_per_epoch = kSteps};
  int shard_elements_ = 5;
  config::Limits::Transport transport_kind_ = config::Limits::TCP;
  JobShape shape_;
  std::unique_ptr<CoordinatorThread> coordinator_;
  std::unique_ptr<ServerInProcess> server_;
};

struct Case {
  const char* mode;
  wire::Initializer::Kind kind;
  float begins_with;  // What all see in the first step.
};
class SessionModeTest : public SessionTest,
                        public ::testing::WithParamInterface<Case> {};

TEST_P(SessionModeTest, TrainsToTheEndAndWritesTheModel) {
  StartJob(GetParam().mode);
  std::vector<Worker> workers = {Worker(50), Worker(70)};
  const std::vector<absl::Status> ends = Run(
      workers, GetParam().kind, {Training(workers[0]), Training(workers[1])});
  std::vector<Clock> clocks;
  std::vector<float> values;
  for (Clock clock = 0; clock < kSteps; ++clock) {
    clocks.push_back(clock);
    values.push_back(GetParam().begins_with - static_cast<float>(clock));
  }
  for (int rank = 0; rank < kWorkers; ++rank) {
    SCOPED_TRACE(absl::StrCat("worker ", rank));
    const Worker& worker = workers[static_cast<size_t>(rank)];
    EXPECT_TRUE(ends[static_cast<size_t>(rank)].ok())
        << ends[static_cast<size_t>(rank)];
    EXPECT_EQ(worker.steps, clocks);
    EXPECT_EQ(worker.seen, values);
  }
  EXPECT_EQ(workers[0].conclusions + workers[1].conclusions, 1);
  const SafetensorsFile file =
      Must(ReadSafetensors((folder_ / "model.safetensors").string()));
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].name, "weight");
  EXPECT_EQ(file.tensors[0].shape, (std::vector<int64_t>{4, 3}));
  for (const Tensor& tensor : file.tensors)
    EXPECT_THAT(tensor.values, Each(GetParam().begins_with - kSteps));
}

INSTANTIATE_TEST_SUITE_P(
    Modes, SessionModeTest,
    ::testing::Values(Case{"bsp {}", wire::Initializer::CONSTANT, 10},
                      Case{"allreduce {}", wire::Initializer::CONSTANT, 10},
                      Case{"bsp {}", wire::Initializer::OF_WORKER, 50},
                      Case{"allreduce {}", wire::Initializer::OF_WORKER, 50}),
    [](const auto& info) {
      return absl::StrCat(
          info.param.mode[0] == 'b' ? "Bsp" : "AllReduce",
          info.param.kind == wire::Initializer::CONSTANT ? "" : "OfAWorker");
    });

// One element of a table, computed step by step.
class Element {
 public:
  explicit Element(const config::Optimizer& rule)
      : rule_(Must(Optimizer::Create(rule))) {}
  float value() const { return value_; }
  void Update(float gradient, const StepOptions& options) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&gradient);
    Optimizer::ApplyArgs args;
    args.in = args.out = &value_;
    args.slots = {&slots_[0], &slots_[1]};
    args.gradients = absl::MakeConstSpan(&bytes, 1);
    args.elements = 1;
    args.numbers = {
        .learning_rate = rule_.learning_rate() * options.rate_factor,
        .momentum = options.momentum};
    args.update_count = ++count_;
    rule_.Apply(args);
  }

 private:
  const Optimizer rule_;
  float value_ = 10;
  float slots_[2] = {0, 0};
  int64_t count_ = 0;
};

// Two steps over servers, two by all-reduce, and two over servers again. The
// gradients are 1 and 3, whose mean is 2.
TEST_F(SessionTest, EachTableIsTrainedByItsOwnRuleWhereverTheStepsAreDone) {
  const StepOptions kOptions[kSteps] = {
      {},
      {.rate_factor = 0.5, .momentum = 0.5},
      {.rate_factor = 2, .momentum = 0.25},
      {.rate_factor = 0.25},
      {.rate_factor = 0, .momentum = 0.75},
      {.rate_factor = 1.5, .momentum = 0.125}};
  const auto of_bias_in = [](StepOptions options) {
    options.rate_factor *= 2;
    return options;
  };
  length_.steps_per_epoch = 2;
  StartJob(
      "phase { bsp {} until_epoch: 1 } phase { allreduce {} until_epoch: 2 } "
      "phase { bsp {} }",
      /*optimizer=*/"");
  std::vector<Worker> workers = {Worker(0), Worker(0)};
  config::Optimizer of_weight, of_bias;
  of_weight.mutable_adamw()->set_learning_rate(0.3);
  of_bias.mutable_momentum()->set_learning_rate(0.7);
  of_bias.mutable_momentum()->set_weight_decay(0.1);
  for (Worker& worker : workers) {
    worker.of_weight = of_weight;
    worker.of_bias = of_bias;
  }
  Element weight(of_weight);
  Element bias(of_bias);
  std::vector<std::pair<float, float>> expected;
  for (const StepOptions& options : kOptions) {
    expected.push_back({weight.value(), bias.value()});
    weight.Update(2, options);
    bias.Update(2, of_bias_in(options));
  }
  std::vector<std::vector<std::pair<float, float>>> seen(workers.size());
  const auto program = [&](size_t rank) {
    return [&, rank](Session& session) {
      Worker& worker = workers[rank];
      const float gradient = rank == 0 ? 1 : 3;
      while (const std::optional<Session::Task> task = session.Next()) {
        if (const auto* const step = std::get_if<Session::Step>(&*task)) {
          EXPECT_THAT(worker.weight, Each(worker.weight[0]));
          EXPECT_THAT(worker.bias, Each(worker.bias[0]));
          seen[rank].push_back({worker.weight[0], worker.bias[0]});
          StepOptions options = kOptions[step->clock];
          // Of a sum on the servers, only the options of rank 0 count.
          if (rank == 1 && (step->clock < 2 || step->clock >= 4))
            options = {.rate_factor = 9, .momentum = 0.9};
          EXPECT_TRUE(
              session.Gradient(1, Filled(3, gradient), of_bias_in(options))
                  .ok());
          EXPECT_TRUE(session.Gradient(0, Filled(12, gradient), options).ok());
          EXPECT_TRUE(session.FinishStep(0.5).ok());
        } else if (std::holds_alternative<Session::Conclusion>(*task)) {
          session.Conclude({.loss = 1, .accuracy = 0.5},
                           {.loss = 2, .accuracy = 0.25});
        }
      }
      return session.ending();
    };
  };
  for (const absl::Status& end :
       Run(workers, wire::Initializer::CONSTANT, {program(0), program(1)})) {
    EXPECT_TRUE(end.ok()) << end;
  }
  EXPECT_EQ(seen[0], expected);
  EXPECT_EQ(seen[1], expected);
  const SafetensorsFile file =
      Must(ReadSafetensors((folder_ / "model.safetensors").string()));
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_THAT(file.tensors[0].values, Each(weight.value()));
  EXPECT_THAT(file.tensors[1].values, Each(bias.value()));
}

TEST_F(SessionTest, AModelOfWhichATableHasNoOptimizerAtAllIsRefused) {
  StartJob("bsp {}", /*optimizer=*/"");
  std::vector<Worker> workers = {Worker(0), Worker(0)};
  for (Worker& worker : workers)
    worker.of_weight.emplace().mutable_sgd()->set_learning_rate(1);
  for (const absl::Status& end :
       Run(workers, wire::Initializer::CONSTANT,
           {Training(workers[0]), Training(workers[1])})) {
    EXPECT_THAT(end.message(),
                HasSubstr("table bias[3] without an optimizer, and the config "
                          "has none; give the table one, or write one"));
  }
}

TEST_F(SessionTest, WhatAProgramDoesWrongInAStepIsNamedAndChangesNothing) {
  StartJob("bsp {}");
  std::vector<Worker> workers = {Worker(0), Worker(0)};
  const auto clumsy = [&](Session& session) {
    EXPECT_EQ(session.Gradient(0, Ones(12)).code(),
              absl::StatusCode::kFailedPrecondition);
    const std::optional<Session::Task> first = session.Next();
    EXPECT_TRUE(first.has_value() &&
                std::holds_alternative<Session::Step>(*first));
    const absl::Status size = session.Gradient(0, Ones(3));
    EXPECT_EQ(size.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(size.message(),
                AllOf(HasSubstr("'weight'"), HasSubstr("12 bytes"),
                      HasSubstr("48 are required")));
    EXPECT_THAT(session.Gradient(2, Ones(3)).message(),
                HasSubstr("table 2 is outside [0, 2)"));
    EXPECT_THAT(session.Gradient(0, Ones(12), {.rate_factor = -1}).message(),
                HasSubstr("the gradient of 'weight' has a rate factor of -1; 0 "
                          "to 1e+06 is required"));
    EXPECT_TRUE(session.Gradient(0, Ones(12)).ok());
    EXPECT_THAT(session.Gradient(0, Ones(12)).message(),
                HasSubstr("'weight' has a gradient in step 0 already"));
    const absl::Status missing = session.FinishStep(1);
    EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(missing.message(),
                HasSubstr("step 0 has no gradient of 'bias'"));
    EXPECT_TRUE(session.Gradient(1, Ones(3)).ok());
    EXPECT_TRUE(session.FinishStep(1).ok());
    EXPECT_EQ(session.FinishStep(1).code(),
              absl::StatusCode::kFailedPrecondition);
    return Train(workers[0], session);
  };
  for (const absl::Status& end : Run(workers, wire::Initializer::CONSTANT,
                                     {clumsy, Training(workers[1])})) {
    EXPECT_TRUE(end.ok()) << end;
  }
  EXPECT_EQ(workers[1].seen.back(), 10 - (kSteps - 1));
}

// Gradients of ones, and two for the bias: by momentum 0.5 the slot of a table
// that begins with s becomes s / 2 + gradient in each step.
class SessionStateTest : public SessionTest,
                         public ::testing::WithParamInterface<const char*> {};

TEST_P(SessionStateTest, AJobGoesOnWithTheOptimizerOfAnother) {
  StartJob(GetParam(),
           "optimizer { momentum { learning_rate: 1 momentum: 0.5 } }");
  std::vector<Worker> workers = {Worker(50), Worker(70)};
  const auto expect = [](Session& session, float weight, float bias,
                         int64_t updates) {
    const std::vector<TableState> states = Must(session.OptimizerState());
    ASSERT_EQ(states.size(), 2u);
    for (const auto& [table, slot] :
         {std::pair<size_t, float>{0, weight}, {1, bias}}) {
      EXPECT_EQ(states[table].updates, updates);
      ASSERT_EQ(states[table].slots.size(), 1u);
      std::vector<float> values(table == 0 ? 12 : 3);
      ASSERT_EQ(states[table].slots[0].size(), values.size() * sizeof(float));
      std::memcpy(values.data(), states[table].slots[0].data(),
                  values.size() * sizeof(float));
      EXPECT_THAT(values, Each(slot));
    }
  };
  const auto program = [&](size_t rank) {
    return [&, rank](Session& session) {
      Worker& worker = workers[rank];
      EXPECT_EQ(session.OptimizerState().status().code(),
                absl::StatusCode::kFailedPrecondition);
      std::vector<TableState> states(2);
      states[0] = {.updates = 7, .slots = {Filled(12, rank == 0 ? 8 : 99)}};
      states[1] = {.updates = 7, .slots = {Filled(3, rank == 0 ? 16 : 99)}};
      EXPECT_TRUE(session.BeginWith(states).ok());
      float weight = 8, bias = 16;
      float value = 50;
      while (const std::optional<Session::Task> task = session.Next()) {
        if (const auto* const step = std::get_if<Session::Step>(&*task)) {
          EXPECT_THAT(worker.weight, Each(value));
          expect(session, weight, bias, 7 + step->clock);
          EXPECT_TRUE(session.Gradient(0, Ones(12)).ok());
          // In the middle of a step, and after it, with nothing in between.
          expect(session, weight, bias, 7 + step->clock);
          EXPECT_TRUE(session.Gradient(1, Filled(3, 2)).ok());
          EXPECT_TRUE(session.FinishStep(0.5).ok());
          weight = weight / 2 + 1;
          bias = bias / 2 + 2;
          value -= weight;
          // After the last one, too, whoever concludes the job.
          EXPECT_TRUE(session.FetchParameters().ok());
          EXPECT_THAT(worker.weight, Each(value));
          expect(session, weight, bias, 8 + step->clock);
        } else if (std::holds_alternative<Session::Conclusion>(*task)) {
          expect(session, weight, bias, 7 + kSteps);
          session.Conclude({}, {});
        }
      }
      EXPECT_FALSE(session.OptimizerState().ok());
      return session.ending();
    };
  };
  for (const absl::Status& end :
       Run(workers, wire::Initializer::OF_WORKER, {program(0), program(1)})) {
    EXPECT_TRUE(end.ok()) << end;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, SessionStateTest,
    ::testing::Values("bsp {}", "allreduce {}",
                      "phase { bsp {} until_epoch: 0.5 } phase { allreduce {} "
                      "until_epoch: 0.8 } phase { bsp {} }"),
    [](const auto& info) {
      return std::string(info.param[0] == 'b'   ? "Bsp"
                         : info.param[0] == 'a' ? "AllReduce"
                                                : "Changing");
    });

TEST_F(SessionTest, AStateThatDoesNotFitIsNamed) {
  StartJob("bsp {}", "optimizer { adam { learning_rate: 1 } }");
  Worker worker(0);
  const auto why = [&](wire::Initializer::Kind kind,
                       std::vector<TableState> states) {
    HostParameters parameters = worker.Parameters(kind);
    const auto session = Must(
        Session::Create(OptionsOf(0), &parameters, transport_, transport_));
    const absl::Status status = session->BeginWith(std::move(states));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto of = wire::Initializer::OF_WORKER;
  const TableState good = {.updates = 1, .slots = {Ones(12), Ones(12)}};
  EXPECT_THAT(why(of, {good}), HasSubstr("of 1 tables; 2 are required"));
  EXPECT_THAT(why(of, {good, good}),
              HasSubstr("'bias' has a tensor of 48 bytes; 12 are required"));
  EXPECT_THAT(why(of, {{.updates = 1, .slots = {Ones(12)}}, good}),
              HasSubstr("'weight' has 1 tensors; 2 are required"));
  EXPECT_THAT(why(of, {{.updates = -1, .slots = good.slots}, good}),
              HasSubstr("'weight' is of -1 updates; 0 to"));
  EXPECT_THAT(why(wire::Initializer::CONSTANT, {good, good}),
              HasSubstr("'weight' has no use"));
}

// Tables of 400,000 bytes come in messages of their own. SGD with rate 1 and
// gradients of ones: all elements of a table are the same number, and each of
// the two workers' gradients takes one half.
TEST_F(SessionTest, AStepMayBeginWithItsFirstTable) {
  constexpr int kElements = 100'000;
  shard_elements_ = kElements;
  StartJob("asp {}");
  std::vector<absl::Status> ends(kWorkers);
  std::vector<int> by_table(kWorkers, 0);
  const auto train = [&](size_t rank) {
    std::vector<std::vector<float>> values(
        3, std::vector<float>(size_t{kElements}));
    std::vector<HostParameters::Parameter> tables;
    for (const char* const name : {"first", "second", "third"}) {
      HostParameters::Parameter& table = tables.emplace_back();
      table.table.name = name;
      table.table.shape = {kElements};
      table.table.initializer.set_kind(wire::Initializer::CONSTANT);
      table.table.initializer.set_a(10);
      table.values = values[tables.size() - 1].data();
    }
    HostParameters parameters = Must(HostParameters::Create(tables));
    Session::Options options = OptionsOf(static_cast<int>(rank));
    options.step_by_table = true;
    const auto session =
        Must(Session::Create(options, &parameters, transport_, transport_));
    while (const std::optional<Session::Task> task = session->Next()) {
      if (std::holds_alternative<Session::Conclusion>(*task))
        session->Conclude({}, {});
      const auto* const step = std::get_if<Session::Step>(&*task);
      if (step == nullptr) continue;
      by_table[rank] += step->by_table;
      EXPECT_EQ(session->WaitFor(3).code(), absl::StatusCode::kInvalidArgument);
      // The first one is there. The step has at least this worker's gradients.
      for (const int table : {0, 2, 1}) {
        for (int times = table > 0 ? 2 : 0; times > 0; --times) {
          EXPECT_TRUE(session->WaitFor(table).ok());
        }
        const std::vector<float>& has = values[static_cast<size_t>(table)];
        EXPECT_THAT(has, Each(has[0]));
        EXPECT_LE(has[0], 10 - static_cast<float>(step->clock) / kWorkers);
      }
      // New values come back in this order.
      for (const int table : {0, 1, 2})
        EXPECT_TRUE(session->Gradient(table, Ones(size_t{kElements})).ok());
      EXPECT_TRUE(session->FinishStep(1).ok());
    }
    ends[rank] = session->ending();
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  for (int rank = 0; rank < kWorkers; ++rank)
    EXPECT_TRUE(ends[static_cast<size_t>(rank)].ok());
  EXPECT_GT(by_table[0] + by_table[1], 0);
  const SafetensorsFile file =
      Must(ReadSafetensors((folder_ / "model.safetensors").string()));
  for (const Tensor& tensor : file.tensors)
    EXPECT_THAT(tensor.values, Each(10 - kSteps));
}

// Worker 1 comes to the collective only when the servers have what worker 0,
// which stands there and owes an evaluation, has to bring them.
TEST_F(SessionTest, AnEvaluationIsOfItsStepAndHoldsUpNobodyAtACollective) {
  length_.steps_per_epoch = kSteps / 2;
  StartJob("phase { allreduce {} until_epoch: 1 } phase { bsp {} }");
  constexpr Clock kFence = kSteps / 2;
  std::vector<Worker> workers = {Worker(50), Worker(70)};
  const auto gather = [](Session& session) {
    const auto all = session.Gather({.place = 2 * kFence}, Ones(1));
    EXPECT_TRUE(all.ok()) << all.status();
  };
  const auto finish = [](Session& session) {
    EXPECT_TRUE(session.Gradient(1, Ones(3)).ok());
    EXPECT_TRUE(session.Gradient(0, Ones(12)).ok());
    EXPECT_TRUE(session.FinishStep(0.5).ok());
  };
  std::vector<std::string> tasks;  // Of worker 0, around the fence.
  const Program stands_there = [&](Session& session) {
    while (const std::optional<Session::Task> task = session.Next()) {
      if (const auto* const step = std::get_if<Session::Step>(&*task)) {
        if (step->clock >= kFence - 1)
          tasks.push_back(absl::StrCat("step ", step->clock));
        finish(session);
        if (step->clock == kFence - 1) gather(session);
      } else if (const auto* const evaluation =
                     std::get_if<Session::Evaluation>(&*task)) {
        tasks.push_back(absl::StrCat("evaluate ", evaluation->clock));
        float bias = 0;
        std::memcpy(&bias, evaluation->parameters[1][0].data(), sizeof(bias));
        EXPECT_EQ(bias, 10 - kFence);
      } else {
        session.Conclude({}, {});
      }
    }
    return session.ending();
  };
  const Program comes_later = [&](Session& session) {
    while (const std::optional<Session::Task> task = session.Next()) {
      const auto* const step = std::get_if<Session::Step>(&*task);
      if (step == nullptr) continue;
      if (step->clock == kFence) gather(session);
      finish(session);
    }
    return session.ending();
  };
  for (const absl::Status& end :
       Run(workers, wire::Initializer::CONSTANT, {stands_there, comes_later}))
    EXPECT_TRUE(end.ok()) << end;
  EXPECT_THAT(
      tasks, ElementsAre("step 2", "evaluate 3", "step 3", "step 4", "step 5"));
}

// Where peers on their host read them, and neighbouring ones lie side by side.
TEST_F(SessionTest, ServersMakeTheirVersionsInMemoryOfTheTransport) {
  for (const auto kind : {config::Limits::TCP, config::Limits::AUTO}) {
    transport_kind_ = kind;
    const auto made_before = transport_.made();
    server_.reset();
    coordinator_.reset();
    StartJob("bsp {}");
    std::vector<Worker> workers = {Worker(0), Worker(0)};
    for (const absl::Status& end :
         Run(workers, wire::Initializer::CONSTANT,
             {Training(workers[0]), Training(workers[1])})) {
      EXPECT_TRUE(end.ok()) << end;
    }
    EXPECT_GT(transport_.made(), made_before);
  }
}

TEST_F(SessionTest, AStepThatIsNotFinishedEndsTheWorker) {
  StartJob("bsp {}");
  std::vector<Worker> workers = {Worker(0), Worker(0)};
  const auto forgetful = [](Session& session) {
    EXPECT_TRUE(session.Next().has_value());
    EXPECT_FALSE(session.Next().has_value());
    EXPECT_FALSE(session.Next().has_value()) << "nor later";
    return session.ending();
  };
  const std::vector<absl::Status> ends = Run(
      workers, wire::Initializer::CONSTANT, {Training(workers[0]), forgetful});
  EXPECT_EQ(ends[1].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(ends[1].message(), HasSubstr("step 0 was not finished"));
}

TEST_F(SessionTest, AWorkerThatIsInterruptedSaysSo) {
  StartJob("bsp {}");
  std::vector<Worker> workers = {Worker(0), Worker(0)};
  const auto interrupted = [&](Session& session) {
    EXPECT_TRUE(session.Next().has_value());
    session.Interrupt("enough");
    (void)session.Gradient(0, Ones(12));
    (void)session.Gradient(1, Ones(3));
    (void)session.FinishStep(1);
    EXPECT_FALSE(session.Next().has_value());
    return session.ending();
  };
  const std::vector<absl::Status> ends =
      Run(workers, wire::Initializer::CONSTANT,
          {interrupted, Training(workers[1])});
  EXPECT_EQ(ends[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ends[0].message(), "enough");
}

TEST(RemovalsTest, WhoIsRemovedThreeTimesWithoutAStepDoesNotJoinAgain) {
  Removals removals;
  removals.OnLifeEnded(/*removed=*/true, /*steps=*/0);
  removals.OnLifeEnded(/*removed=*/true, /*steps=*/0);
  EXPECT_FALSE(removals.IsInVain());
  removals.OnLifeEnded(/*removed=*/true, /*steps=*/1);
  for (int i = 0; i < 2; ++i)
    removals.OnLifeEnded(/*removed=*/true, /*steps=*/0);
  removals.OnLifeEnded(/*removed=*/false, /*steps=*/0);
  for (int i = 0; i < 2; ++i)
    removals.OnLifeEnded(/*removed=*/true, /*steps=*/0);
  EXPECT_FALSE(removals.IsInVain()) << "a step, or a lease, came between";
  removals.OnLifeEnded(/*removed=*/true, /*steps=*/0);
  EXPECT_TRUE(removals.IsInVain());
}

TEST(HostParametersTest, RefusesWhatIsNoParameterByName) {
  float memory = 0;
  const auto create = [&](const std::vector<HostParameters::Parameter>& all) {
    return std::string(HostParameters::Create(all).status().message());
  };
  EXPECT_THAT(create({}), HasSubstr("without parameters"));
  EXPECT_THAT(create({{.table = {}, .values = &memory}}),
              HasSubstr("has no name"));
  const HostParameters::Parameter good = {
      .table = {.name = "a", .shape = {1}, .initializer = {}},
      .values = &memory};
  EXPECT_THAT(create({good, good}), HasSubstr("'a': another parameter"));
  HostParameters::Parameter bad = good;
  bad.table.shape = {2, 0};
  EXPECT_THAT(create({bad}), HasSubstr("shape is [2, 0]"));
  bad = good;
  bad.table.optimizer.emplace().mutable_adam()->set_learning_rate(-1);
  EXPECT_THAT(create({bad}),
              HasSubstr("'a': optimizer.adam.learning_rate: value is -1"));
  bad = good;
  bad.values = nullptr;
  EXPECT_THAT(create({bad}), HasSubstr("has no memory"));
}

}  // namespace slackline::session_test
