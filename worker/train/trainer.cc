#include "worker/train/trainer.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <utility>
#include <variant>

#include "common/status.h"
#include "worker/model/cuda_model.h"

namespace slackline {
namespace {

Session::Scores ScoresOf(const DatasetLoss& loss) {
  return {.loss = loss.objective, .accuracy = loss.accuracy};
}

}  // namespace

Trainer::Trainer(int compute_threads, const DataSplit* data, Sampler* sampler,
                 Model* model, Session* session)
    : compute_threads_(compute_threads),
      data_(*data),
      sampler_(*sampler),
      model_(*model),
      session_(*session),
      memory_(session->options().config.data().batch_size(), *data->train) {}

absl::Status Trainer::Run() {
  while (const std::optional<Session::Task> task = session_.Next()) {
    const absl::Status done = std::visit(
        [this](const auto& what) { return this->Perform(what); }, *task);
    // Without effect if that is only what ends the worker anyhow.
    if (!done.ok()) session_.Fail(done);
  }
  return session_.ending();
}

absl::Status Trainer::Perform(const Session::Step& step) {
  const absl::Time begin = session_.Now();
  const absl::Span<const int64_t> rows =
      step.examples.has_value()
          ? sampler_.At(step.examples->epoch, step.examples->begin,
                        step.examples->end)
          : sampler_.Batch(step.clock);
  const Batch batch = memory_.Fill(*data_.train, rows);
  session_.Loaded(session_.Now() - begin);
  absl::Status handed_over;
  const auto hand_over = [&](int table, Payload gradient) {
    handed_over.Update(session_.Gradient(table, std::move(gradient)));
  };
  absl::StatusOr<double> loss;
  if (!step.on_device) {
    loss = model_.ForwardBackward(batch, hand_over);
    if (model_.cuda() != nullptr)
      session_.CopiedGradients(model_.cuda()->copies_waited());
  } else {
    loss = model_.cuda()->ForwardBackwardOnDevice(
        batch, [&](int table, float* gradient) {
          const size_t bytes = model_.parameter(table).size() * sizeof(float);
          hand_over(table, Payload::Wrap(gradient, bytes, nullptr));
        });
  }
  SL_RETURN_IF_ERROR(loss.status());
  SL_RETURN_IF_ERROR(handed_over);
  return session_.FinishStep(*loss);
}

absl::Status Trainer::Perform(const Session::Evaluation& evaluation) {
  if (evaluator_ == nullptr) {
    SL_ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        CreateModel(session_.options().config.model(), data_.train->features(),
                    data_.train->classes()));
    evaluator_ = std::make_unique<Evaluator>(
        std::move(model), data_.test, compute_threads_,
        [this](const Evaluator::Evaluation& done) {
          session_.Evaluated(done.step, done.submitted, ScoresOf(done.loss),
                             *done.model);
        });
  }
  if (!evaluator_->Submit(evaluation.clock, evaluation.since,
                          evaluation.parameters)) {
    spdlog::warn(
        "step {}: evaluation skipped, {} wait already; raise train "
        "{{ eval_every_epochs: ... }}",
        evaluation.clock, Evaluator::kQueueMax);
  }
  return absl::OkStatus();
}

absl::Status Trainer::Perform(const Session::Conclusion&) {
  if (evaluator_ != nullptr) SL_RETURN_IF_ERROR(evaluator_->Drain());
  spdlog::info("evaluating the final model");
  const auto go_on = [&] { return session_.ReportProgress(); };
  SL_ASSIGN_OR_RETURN(const DatasetLoss test,
                      EvaluateDataset(model_, *data_.test, go_on));
  SL_ASSIGN_OR_RETURN(const DatasetLoss train,
                      EvaluateDataset(model_, *data_.train, go_on));
  session_.Conclude(ScoresOf(train), ScoresOf(test));
  return absl::OkStatus();
}

}  // namespace slackline
