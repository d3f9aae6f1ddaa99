// A worker with a model of its own: a small LibTorch module, trained through a
// Session (docs/manual/own-models.md goes through this file).
//
//   slackline run own_model.textproto -- ./own_model
//
// With --data-dir it trains on MNIST, from the four IDX files, unpacked, in
// DIR/mnist; without it on points around ten centers.
#include <torch/torch.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "programs/worker/worker_program.h"
#include "worker/session/job_length.h"

namespace {

using slackline::Session;

constexpr int64_t kBatch = 50;  // Examples per worker and step.
constexpr int64_t kClasses = 10;

struct Net : torch::nn::Module {
  explicit Net(int64_t features)
      : hidden(register_module("hidden", torch::nn::Linear(features, 64))),
        norm(register_module(
            "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})))),
        out(register_module("out", torch::nn::Linear(64, kClasses))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::relu(norm(hidden(x))));
  }
  torch::nn::Linear hidden;
  torch::nn::LayerNorm norm;
  torch::nn::Linear out;
};

struct Examples {
  torch::Tensor inputs;  // [examples, features]
  torch::Tensor labels;  // [examples]
};

Examples ReadMnist(const std::string& folder, bool train) {
  using Mnist = torch::data::datasets::MNIST;
  const Mnist files(folder, train ? Mnist::Mode::kTrain : Mnist::Mode::kTest);
  return {files.images().flatten(1), files.targets()};
}

// Normal noise around one center for each class, the same in every process.
Examples MakePoints(int64_t count, uint64_t seed) {
  const torch::Tensor centers =
      torch::randn({kClasses, 32}, at::make_generator<at::CPUGeneratorImpl>(1));
  auto noise = at::make_generator<at::CPUGeneratorImpl>(seed);
  const torch::Tensor labels = torch::arange(count) % kClasses;
  return {centers.index_select(0, labels) + torch::randn({count, 32}, noise),
          labels};
}

// The module's tensors as the tables of the job. The memory stays the module's.
absl::StatusOr<slackline::HostParameters> ParametersOf(Net& net) {
  std::vector<slackline::HostParameters::Parameter> parameters;
  for (const auto& item : net.named_parameters()) {
    slackline::HostParameters::Parameter parameter;
    parameter.table.name = item.key();
    parameter.table.shape = item.value().sizes().vec();
    // The job begins with what the module of worker 0 was initialised with.
    parameter.table.initializer.set_kind(
        slackline::wire::Initializer::OF_WORKER);
    parameter.values = item.value().data_ptr<float>();
    parameters.push_back(std::move(parameter));
  }
  return slackline::HostParameters::Create(parameters);
}

Session::Scores Evaluate(Net& net, const Examples& examples) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor logits = net.forward(examples.inputs);
  const torch::Tensor right = logits.argmax(1).eq(examples.labels);
  return {
      .loss = torch::cross_entropy_loss(logits, examples.labels).item<double>(),
      .accuracy = right.to(torch::kFloat64).mean().item<double>()};
}

absl::Status Train(slackline::WorkerPlace& place) {
  const slackline::config::Train& train_config = place.config().train();
  const auto seed = static_cast<uint64_t>(train_config.seed());
  torch::set_num_threads(place.self().threads);
  torch::manual_seed(seed);
  const bool mnist = !place.data_dir().empty();
  const std::string folder = place.data_dir() + "/mnist";
  const Examples train = mnist ? ReadMnist(folder, true) : MakePoints(8000, 2);
  const Examples test = mnist ? ReadMnist(folder, false) : MakePoints(1000, 3);

  Net net(train.inputs.size(1));
  Net evaluated(train.inputs.size(1));  // For evaluations beside the training.
  absl::StatusOr<slackline::HostParameters> parameters = ParametersOf(net);
  if (!parameters.ok()) return parameters.status();
  absl::StatusOr<slackline::HostParameters> copy = ParametersOf(evaluated);
  if (!copy.ok()) return copy.status();
  const std::vector<torch::Tensor> tensors = net.parameters();

  // Every worker takes its own part of each epoch's order.
  const int64_t per_epoch = train.labels.size(0) / (kBatch * place.workers());
  torch::Tensor order;
  int64_t order_epoch = -1;
  const auto rows = [&](int64_t clock) {
    if (clock / per_epoch != order_epoch) {
      order_epoch = clock / per_epoch;
      order = torch::randperm(
          train.labels.size(0),
          at::make_generator<at::CPUGeneratorImpl>(seed + 1000 * order_epoch));
    }
    const int64_t part = clock % per_epoch * place.workers();
    return order.narrow(0, (part + place.self().rank) * kBatch, kBatch);
  };

  const auto step = [&](Session& session, int64_t clock) -> absl::Status {
    const torch::Tensor batch = rows(clock);
    net.zero_grad();
    const torch::Tensor loss = torch::cross_entropy_loss(
        net.forward(train.inputs.index_select(0, batch)),
        train.labels.index_select(0, batch));
    loss.backward();
    // The last layer first: its values are needed last in the next step. The
    // payload keeps the gradient's tensor alive, and nothing is copied.
    for (int table = static_cast<int>(tensors.size()) - 1; table >= 0;
         --table) {
      torch::Tensor gradient = tensors[table].grad().contiguous();
      const absl::Status taken = session.Gradient(
          table, slackline::Payload::Wrap(gradient.data_ptr(),
                                          gradient.nbytes(), gradient));
      if (!taken.ok()) return taken;
      tensors[table].mutable_grad().reset();  // The next one gets its own.
    }
    return session.FinishStep(loss.item<double>());
  };

  slackline::WorkerPlace::Work work;
  work.length = slackline::JobLengthOf(train_config, per_epoch);
  work.batch_size = kBatch;
  work.data = mnist ? "MNIST" : "points around ten centers";
  return place.Train(work, &*parameters, [&](Session& session) {
    while (const auto task = session.Next()) {
      absl::Status done;
      if (const auto* now = std::get_if<Session::Step>(&*task)) {
        done = step(session, now->clock);
      } else if (const auto* then = std::get_if<Session::Evaluation>(&*task)) {
        slackline::LoadSnapshot(then->parameters, &*copy);
        session.Evaluated(then->clock, then->since, Evaluate(evaluated, test),
                          *copy);
      } else {
        session.Conclude(Evaluate(net, train), Evaluate(net, test));
      }
      if (!done.ok()) session.Fail(done);  // Nothing more if it ends anyhow.
    }
    return session.ending();
  });
}

}  // namespace

int main(int argc, char** argv) {
  return slackline::RunWorkerProgram(
      {.description = "Trains a small LibTorch module of its own.",
       .data_dir_help =
           "Folder with mnist/; default: points around ten centers",
       .run =
           [](slackline::WorkerPlace& place) {
             try {
               return Train(place);
             } catch (const c10::Error& error) {
               return absl::InternalError(error.what_without_backtrace());
             }
           }},
      argc, argv);
}
