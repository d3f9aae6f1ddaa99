#include "python/bindings/lone_worker.h"

#include <nanobind/nanobind.h>

#include "absl/strings/str_cat.h"
#include "python/bindings/errors.h"

namespace slackline::python {

namespace nb = nanobind;

LoneWorker::LoneWorker(std::shared_ptr<Parameters> parameters,
                       const LoneSession::Options& options)
    : parameters_(std::move(parameters)),
      session_(
          ValueOrThrow(LoneSession::Create(options, &parameters_->memory()))) {}

std::optional<Session::Task> LoneWorker::Next() {
  std::optional<Session::Task> task = session_->Next();
  if (!task.has_value()) ThrowIfBad(session_->ending());
  return task;
}

void LoneWorker::BeginWith(
    const std::vector<std::pair<int64_t, std::vector<FloatArray>>>& states) {
  std::vector<TableState> of_tables;
  for (const auto& [updates, slots] : states) {
    TableState& state = of_tables.emplace_back();
    state.updates = updates;
    for (const FloatArray& slot : slots)
      state.slots.push_back(Payload::Copy(slot.data(), slot.nbytes()));
  }
  ThrowIfBad(session_->BeginWith(of_tables));
}

void LoneWorker::FinishStep(
    const std::vector<std::optional<FloatArray>>& gradients,
    const std::vector<StepOptions>& options) {
  const absl::Span<const wire::Table> tables = parameters_->memory().tables();
  if (gradients.size() != tables.size() || options.size() != tables.size())
    throw nb::value_error("a gradient, or none, and options for each table");
  std::vector<LoneSession::Gradient> of_tables;
  for (size_t table = 0; table < tables.size(); ++table) {
    LoneSession::Gradient& gradient = of_tables.emplace_back();
    gradient.options = options[table];
    if (!gradients[table].has_value()) continue;
    const size_t elements =
        parameters_->memory().parameter(static_cast<int>(table)).size();
    if (gradients[table]->size() != elements) {
      ThrowIfBad(absl::InvalidArgumentError(absl::StrCat(
          "the gradient of '", tables[table].name(), "' has ",
          gradients[table]->size(), " values; ", elements, " are required")));
    }
    gradient.values = gradients[table]->data();
  }
  absl::Status done;
  {
    const nb::gil_scoped_release released;
    done = session_->FinishStep(of_tables);
  }
  ThrowIfBad(done);
}

}  // namespace slackline::python
