// slackline._core: what the Python package is made on. Nobody else uses it, and
// it may change with any version.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/blas/open_blas.h"
#include "common/block/bounds.h"
#include "common/config/cluster_config.h"
#include "common/config/parse_text.h"
#include "common/inspection/stack_taker.h"
#include "common/io/safetensors.h"
#include "common/membership/end_status.h"
#include "common/optim/optimizer.h"
#include "common/process/engine_index.h"
#include "common/program_place.h"
#include "common/sync/sync_config.h"
#include "common/version.h"
#include "google/protobuf/descriptor.h"
#include "python/bindings/errors.h"
#include "python/bindings/gpu_parameters.h"
#include "python/bindings/lone_worker.h"
#include "python/bindings/parameters.h"
#include "python/bindings/worker.h"
#include "worker/data/sampler.h"
#include "worker/session/job_length.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace slackline::python {
namespace {

// The rule of an optimizer.
class Rule {
 public:
  explicit Rule(const std::string& text)
      : config_(ParseOptimizer(text)),
        optimizer_(ValueOrThrow(Optimizer::Create(config_))) {}

  int slots() const { return optimizer_.slot_count(); }
  double learning_rate() const { return optimizer_.learning_rate(); }
  std::optional<double> momentum() const { return optimizer_.momentum(); }
  std::string FaultOfMomentum(double momentum) const {
    return optimizer_.FaultOfMomentum(momentum);
  }
  // Of NAdam.
  double ProductOfMomenta(int64_t updates) const {
    return optim::ProductOfMomenta(config_.nadam(),
                                   static_cast<double>(updates));
  }
  RuleFields fields() const { return FieldsOf(config_); }

 private:
  const config::Optimizer config_;
  const Optimizer optimizer_;
};

// Epoch and places [begin, end) in its order.
using Places = std::tuple<int64_t, int64_t, int64_t>;
Places TupleOf(const ExampleRange& range) {
  return {range.epoch, range.begin, range.end};
}

class PythonSampler {
 public:
  PythonSampler(int64_t examples, int64_t batch_size, int rank,
                int64_t world_size, uint64_t seed, bool elastic, bool shuffle)
      : examples_(examples),
        sampler_(ValueOrThrow(Sampler::Create({.examples = examples,
                                               .batch_size = batch_size,
                                               .rank = Rank{rank},
                                               .world_size = world_size,
                                               .seed = seed,
                                               .elastic = elastic,
                                               .shuffle = shuffle}))) {}
  int64_t steps_per_epoch() const { return sampler_.steps_per_epoch(); }
  Places PlacesOf(Clock step) const {
    if (step < 0) throw nb::value_error("a step is at least 0");
    return TupleOf(sampler_.PlacesOf(step));
  }
  std::vector<int64_t> At(int64_t epoch, int64_t begin, int64_t end) {
    if (epoch < 0 || begin < 0 || begin > end || end > examples_)
      throw nb::value_error("there are no such places in an epoch");
    const absl::Span<const int64_t> rows = sampler_.At(epoch, begin, end);
    return {rows.begin(), rows.end()};
  }

 private:
  const int64_t examples_;
  Sampler sampler_;
};

Session::Scores ScoresOf(const std::map<std::string, double>& values) {
  Session::Scores scores;
  scores.values = values;
  const auto take = [&](const char* name) -> std::optional<double> {
    const auto found = scores.values.find(name);
    if (found == scores.values.end()) return std::nullopt;
    const double value = found->second;
    scores.values.erase(found);
    return value;
  };
  scores.loss = take("loss");
  scores.accuracy = take("accuracy");
  return scores;
}

using StateBytes = std::pair<int64_t, std::vector<nb::bytearray>>;
// A slot at a time is there twice.
std::vector<StateBytes> BytesOf(std::vector<TableState> states) {
  std::vector<StateBytes> all;
  for (TableState& state : states) {
    auto& [updates, slots] = all.emplace_back();
    updates = state.updates;
    for (Payload& slot : state.slots) {
      slots.emplace_back(slot.data(), slot.size());
      slot = Payload();
    }
  }
  return all;
}

// Examples of an epoch, and in all.
using Elastic = std::tuple<int64_t, int64_t>;
std::optional<ElasticSampling> SamplingOf(const std::optional<Elastic>& elastic,
                                          int64_t batch_size) {
  if (!elastic.has_value()) return std::nullopt;
  return ElasticSampling{.examples = std::get<0>(*elastic),
                         .batch_size = batch_size,
                         .total = std::get<1>(*elastic)};
}

config::Train TrainOf(std::optional<double> epochs,
                      std::optional<int64_t> max_steps) {
  config::Train train;
  if (epochs.has_value()) train.set_epochs(*epochs);
  if (max_steps.has_value()) train.set_max_steps(*max_steps);
  return train;
}

// What the text of a config has, by the names of its fields.
std::vector<std::string> ConfigFields(const std::string& text,
                                      const std::string& file_name) {
  config::ClusterConfig config;
  FieldOrigins origins(file_name);
  ThrowIfBad(ParseConfigText(text, file_name, &config, &origins));
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  config.GetReflection()->ListFields(config, &fields);
  std::vector<std::string> names;
  for (const auto* const field : fields) names.emplace_back(field->name());
  return names;
}

// As JobLengthOf(), of what is given.
std::tuple<int64_t, int64_t> LengthOf(std::optional<double> epochs,
                                      std::optional<int64_t> max_steps,
                                      int64_t steps_per_epoch) {
  const auto length = JobLengthOf(TrainOf(epochs, max_steps), steps_per_epoch);
  return {length.steps_total, length.steps_per_epoch};
}

// As ElasticLengthOf(): steps in all and in an epoch, and examples in all.
std::tuple<int64_t, int64_t, int64_t> ElasticLength(
    std::optional<double> epochs, std::optional<int64_t> max_steps,
    int64_t examples, int64_t batch_size, int64_t workers) {
  const auto job = ElasticLengthOf(TrainOf(epochs, max_steps), examples,
                                   batch_size, workers);
  return {job.length.steps_total, job.length.steps_per_epoch,
          job.elastic.total};
}

CUstream_st* StreamOf(uintptr_t handle) {
  return reinterpret_cast<CUstream_st*>(handle);
}

std::optional<RuleFields> OptimizerOf(const config::ClusterConfig& config) {
  if (!config.has_optimizer()) return std::nullopt;
  return FieldsOf(config.optimizer());
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The part of slackline that is compiled.";
  // A script keeps its job until the process ends.
  nb::set_leak_warnings(false);
  m.attr("version") = VersionNumber();
  m.attr("has_gpu_code") = HasGpuCode();
  nb::exception<JobError>(m, "JobError", PyExc_RuntimeError);
  nb::exception<JobSuspended>(m, "JobSuspended", m.attr("JobError"));
  m.attr("exit_code_suspended") = kExitSuspended;

  nb::class_<Table>(m, "Table")
      .def(
          "__init__",
          [](Table* self, std::string name, std::vector<int64_t> shape,
             TensorArray values, const std::string& optimizer) {
            new (self) Table{std::move(name), std::move(shape),
                             std::move(values), ParseOptimizer(optimizer)};
          },
          "name"_a, "shape"_a, "values"_a, "optimizer"_a);
  nb::class_<TypedTensor>(m, "TypedTensor")
      .def(
          "__init__",
          [](TypedTensor* self, const std::string& name,
             const std::string& type, const std::vector<int64_t>& shape,
             const ByteArray& bytes) {
            new (self) TypedTensor(MakeTypedTensor(name, type, shape, bytes));
          },
          "name"_a, "type"_a, "shape"_a, "bytes"_a);
  nb::class_<Parameters>(m, "Parameters")
      .def(nb::new_(&MakeHostParameters), "tables"_a)
      .def("load",
           [](Parameters& self, const Session::Evaluation& evaluation) {
             self.Load(evaluation.parameters);
           })
      .def("set_companions", &Parameters::SetCompanions, "tensors"_a);

  nb::class_<Session::Step>(m, "Step")
      .def_ro("clock", &Session::Step::clock)
      .def_ro("by_table", &Session::Step::by_table)
      .def_ro("keeps_model", &Session::Step::keeps_model)
      .def_prop_ro(
          "is_done_together",
          [](const Session::Step& step) { return IsDoneTogether(step.kind); })
      // None without elastic sampling.
      .def_prop_ro("examples",
                   [](const Session::Step& step) -> std::optional<Places> {
                     if (!step.examples.has_value()) return std::nullopt;
                     return TupleOf(*step.examples);
                   });
  nb::class_<Session::Evaluation>(m, "Evaluation")
      .def_ro("clock", &Session::Evaluation::clock);
  nb::class_<Session::Conclusion>(m, "Conclusion");
  nb::class_<Session::Keep>(m, "Keep")
      .def_ro("cut", &Session::Keep::cut)
      .def_ro("last", &Session::Keep::last);
  nb::class_<Session::Restore>(m, "Restore")
      .def_prop_ro("state", [](const Session::Restore& restore) {
        return nb::bytes(restore.state.data(), restore.state.size());
      });

  nb::class_<Worker>(m, "Worker")
      .def(
          "__init__",
          [](Worker* self, std::string cluster, int index, std::string out,
             std::string data_dir, std::string program, std::string mode,
             std::optional<int> health_port, std::string key) {
            new (self) Worker({.cluster = std::move(cluster),
                               .index = index,
                               .out = std::move(out),
                               .data_dir = std::move(data_dir),
                               .program = std::move(program),
                               .mode = std::move(mode),
                               .health_port = health_port,
                               .key = std::move(key)});
          },
          "cluster"_a, "index"_a, "out"_a, "data_dir"_a, "program"_a, "mode"_a,
          "health_port"_a.none(), "key"_a)
      .def_prop_ro("job", [](Worker& w) { return w.config().job(); })
      .def_prop_ro("rank", [](Worker& w) { return w.self().rank; })
      .def_prop_ro("world_size", &Worker::workers)
      .def_prop_ro("threads", [](Worker& w) { return w.self().threads; })
      .def_prop_ro("gpu",
                   [](Worker& w) -> std::optional<int> {
                     if (w.self().gpu < 0) return std::nullopt;
                     return w.self().gpu;
                   })
      .def_prop_ro("shows_health", &Worker::shows_health)
      .def("forget_health", &Worker::ForgetHealth)
      // faulthandler writes to the file on the signal.
      .def(
          "show_stacks",
          [](Worker& w, int signal, int descriptor,
             std::vector<std::string> libraries) {
            w.ShowStacks({.signal = signal,
                          .descriptor = descriptor,
                          .libraries = std::move(libraries)});
          },
          "signal"_a, "descriptor"_a, "libraries"_a)
      .def_prop_ro("all_on_gpus", &Worker::all_on_gpus)
      .def_prop_ro("out", [](Worker& w) { return w.flags().out; })
      .def_prop_ro("data_dir", [](Worker& w) { return w.flags().data_dir; })
      .def_prop_ro("seed", [](Worker& w) { return w.config().train().seed(); })
      .def_prop_ro("epochs",
                   [](Worker& w) -> std::optional<double> {
                     const config::Train& train = w.config().train();
                     if (!train.has_epochs()) return std::nullopt;
                     return train.epochs();
                   })
      .def_prop_ro("max_steps",
                   [](Worker& w) -> std::optional<int64_t> {
                     const config::Train& train = w.config().train();
                     if (!train.has_max_steps()) return std::nullopt;
                     return train.max_steps();
                   })
      .def_prop_ro("mode", [](Worker& w) { return ModeText(w.config()); })
      .def_prop_ro("steps_together",
                   [](Worker& w) { return StepsTogether(w.config().sync()); })
      .def_prop_ro("optimizer",
                   [](Worker& w) { return OptimizerOf(w.config()); })
      .def(
          "open",
          [](Worker& w, std::shared_ptr<Parameters> parameters,
             int64_t steps_total, int64_t steps_per_epoch, int64_t batch_size,
             std::string data, std::string data_hash,
             std::optional<Elastic> elastic, bool by_table) {
            w.Open(std::move(parameters),
                   {.steps_total = steps_total,
                    .steps_per_epoch = steps_per_epoch,
                    .batch_size = batch_size,
                    .data = std::move(data),
                    .data_hash = std::move(data_hash),
                    .elastic = SamplingOf(elastic, batch_size),
                    .step_by_table = by_table});
          },
          "parameters"_a, "steps_total"_a, "steps_per_epoch"_a, "batch_size"_a,
          "data"_a, "data_hash"_a = "", "elastic"_a = nb::none(),
          "by_table"_a = false)
      // A stream is PyTorch's cuda_stream; 0 for tensors on the host.
      .def(
          "gpu_parameters",
          [](Worker& w, std::vector<Table> tables, uintptr_t stream) {
            return w.MakeGpuParameters(std::move(tables), StreamOf(stream));
          },
          "tables"_a, "stream"_a)
      .def("next", &Worker::Next)
      .def("wait_for", &Worker::WaitFor, "table"_a)
      .def(
          "gradient",
          [](Worker& w, int table, TensorArray gradient,
             const StepOptions& options, uintptr_t stream) {
            w.Gradient(table, std::move(gradient), options, StreamOf(stream));
          },
          "table"_a, "gradient"_a, "options"_a, "stream"_a)
      .def("finish_step", &Worker::FinishStep, "gradients"_a, "options"_a,
           "skipped"_a)
      .def("log", &Worker::Log, "name"_a, "value"_a)
      .def("loaded", &Worker::Loaded, "seconds"_a)
      // Of each table: updates, and slots as tensors on the host.
      .def("begin_with", &Worker::BeginWith, "states"_a)
      // The same with slots as bytes; None if the job has finished.
      .def("optimizer_state",
           [](Worker& w) -> std::optional<std::vector<StateBytes>> {
             auto states = w.OptimizerState();
             if (!states.has_value()) return std::nullopt;
             return BytesOf(*std::move(states));
           })
      .def("fetch_parameters", &Worker::FetchParameters)
      .def("kept", &Worker::Kept, "cut"_a, "state"_a.none(), "error"_a)
      .def("gather", &Worker::Gather, "place"_a, "number"_a, "payload"_a)
      .def("begins_in_epoch", &Worker::BeginsInEpoch)
      .def(
          "evaluated",
          [](Worker& w, const Session::Evaluation& evaluation,
             const std::map<std::string, double>& scores,
             Parameters& parameters) {
            const nb::gil_scoped_release released;
            w.Evaluated(evaluation, ScoresOf(scores), parameters);
          },
          "evaluation"_a, "scores"_a, "parameters"_a)
      .def(
          "conclude",
          [](Worker& w, const std::map<std::string, double>& train,
             const std::map<std::string, double>& test) {
            const nb::gil_scoped_release released;
            w.Conclude(ScoresOf(train), ScoresOf(test));
          },
          "train"_a, "test"_a)
      .def("report_progress", [](Worker& w) { ThrowIfBad(w.ReportProgress()); })
      .def("fail", &Worker::Fail, "why"_a, "traceback"_a, "ends_job"_a)
      .def("suspend", &Worker::Suspend, "reason"_a)
      .def_prop_ro("may_suspend", &Worker::may_suspend)
      .def("interrupt", &Worker::Interrupt, "reason"_a);

  nb::class_<LoneWorker>(m, "LoneWorker")
      .def(
          "__init__",
          [](LoneWorker* self, std::shared_ptr<Parameters> parameters,
             int64_t steps_total, int64_t steps_per_epoch, int64_t batch_size,
             std::optional<Elastic> elastic) {
            new (self)
                LoneWorker(std::move(parameters),
                           {.length = {.steps_total = steps_total,
                                       .steps_per_epoch = steps_per_epoch},
                            .elastic = SamplingOf(elastic, batch_size)});
          },
          "parameters"_a, "steps_total"_a, "steps_per_epoch"_a, "batch_size"_a,
          "elastic"_a = nb::none())
      .def_prop_ro("clock", &LoneWorker::clock)
      .def("next", &LoneWorker::Next)
      .def("finish_step", &LoneWorker::FinishStep, "gradients"_a, "options"_a)
      .def("begin_with", &LoneWorker::BeginWith, "states"_a)
      .def("optimizer_state",
           [](LoneWorker& w) { return BytesOf(w.OptimizerState()); });

  // What travels with a gradient.
  nb::class_<StepOptions>(m, "StepOptions")
      .def(
          "__init__",
          [](StepOptions* self, double rate_factor,
             std::optional<double> momentum) {
            new (self)
                StepOptions{.rate_factor = rate_factor, .momentum = momentum};
          },
          "rate_factor"_a = 1.0, "momentum"_a = nb::none())
      .def_ro("rate_factor", &StepOptions::rate_factor)
      .def_ro("momentum", &StepOptions::momentum)
      .def("__eq__",
           [](const StepOptions& a, const StepOptions& b) { return a == b; });

  nb::class_<Rule>(m, "Rule")
      .def(nb::init<const std::string&>(), "text"_a)
      .def_prop_ro("slots", &Rule::slots)
      .def_prop_ro("learning_rate", &Rule::learning_rate)
      .def_prop_ro("momentum", &Rule::momentum)
      .def("fault_of_momentum", &Rule::FaultOfMomentum, "momentum"_a)
      .def("product_of_momenta", &Rule::ProductOfMomenta, "updates"_a)
      .def_prop_ro("fields", &Rule::fields);

  nb::class_<PythonSampler>(m, "Sampler")
      .def(nb::init<int64_t, int64_t, int, int64_t, uint64_t, bool, bool>(),
           "examples"_a, "batch_size"_a, "rank"_a, "world_size"_a, "seed"_a,
           "elastic"_a, "shuffle"_a)
      .def_prop_ro("steps_per_epoch", &PythonSampler::steps_per_epoch)
      .def("places", &PythonSampler::PlacesOf, "step"_a)
      .def("at", &PythonSampler::At, "epoch"_a, "begin"_a, "end"_a);

  // Of "auto" and "auto+4"; none of others.
  m.def(
      "engine_index",
      [](const std::string& given)
          -> std::optional<std::pair<int, std::string>> {
        const std::optional<int> from = AutoIndexFrom(given);
        if (!from.has_value()) return std::nullopt;
        const EngineIndex index =
            ValueOrThrow(IndexOfEngine(EngineFactsHere(), *from));
        return std::pair(index.index, index.from);
      },
      "given"_a);
  // That nothing here handles; None: there is none.
  m.def("free_signal", &FreeSignal);
  m.def("set_blas_threads", &SetOpenBlasThreads, "threads"_a);
  // Why they stay slow; empty: they do not.
  m.def("choose_blas_kernels", [] {
    const OpenBlasKernels kernels = ChooseOpenBlasKernels();
    return kernels.changed ? "" : kernels.sentence;
  });
  m.def(
      "check_gpu", [](int gpu) { ThrowIfBad(CheckGpuIsThere(gpu)); }, "gpu"_a);
  // Where collectives find each other.
  m.def("place_in_step", &PlaceInStep, "clock"_a);
  m.def("place_between_steps", &PlaceBetweenSteps, "clock"_a, "next"_a.none(),
        "steps_per_epoch"_a);
  m.def("config_fields", &ConfigFields, "text"_a, "file_name"_a);
  m.attr("default_seed") = config::Train().seed();
  m.attr("place_before_all") = kPlaceBeforeAll;
  m.def("gather_bytes_max", &GatherBytesMax, "workers"_a);
  m.def("length", &LengthOf, "epochs"_a.none(), "max_steps"_a.none(),
        "steps_per_epoch"_a);
  m.def("elastic_length", &ElasticLength, "epochs"_a.none(),
        "max_steps"_a.none(), "examples"_a, "batch_size"_a, "workers"_a);
  m.def(
      "write_safetensors",
      [](const std::string& path, const std::vector<TypedTensor>& tensors,
         const std::map<std::string, std::string>& metadata) {
        const nb::gil_scoped_release released;
        ThrowIfBad(WriteSafetensors(path, {}, metadata, tensors));
      },
      "path"_a, "tensors"_a, "metadata"_a);
}

}  // namespace slackline::python
