#include "worker/session/lone_session.h"

#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/optim/finite.h"
#include "common/status.h"
#include "worker/session/metric_records.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<LoneSession>> LoneSession::Create(
    const Options& options, ParameterMemory* parameters) {
  // Without a config the rate is the optimizer's.
  SL_ASSIGN_OR_RETURN(const LearningRateSchedule schedule,
                      LearningRateSchedule::Create(
                          config::LearningRateSchedule(), options.length));
  std::vector<UpdateRule> rules;
  for (const wire::Table& table : parameters->tables()) {
    SL_ASSIGN_OR_RETURN(Optimizer optimizer,
                        Optimizer::Create(table.optimizer()));
    rules.push_back({.optimizer = std::move(optimizer), .schedule = schedule});
  }
  return std::unique_ptr<LoneSession>(
      new LoneSession(options, parameters, std::move(rules)));
}

LoneSession::LoneSession(const Options& options, ParameterMemory* parameters,
                         std::vector<UpdateRule> rules)
    : parameters_(*parameters),
      rules_(std::move(rules)),
      steps_({.steps_total = options.length.steps_total,
              .evaluate_every = EvaluationInterval(
                  config::Train(), options.length.steps_per_epoch),
              .elastic = options.elastic}) {
  for (size_t table = 0; table < rules_.size(); ++table) {
    const size_t elements =
        parameters_.parameter(static_cast<int>(table)).size();
    State& state = states_.emplace_back();
    for (int slot = 0; slot < rules_[table].optimizer.slot_count(); ++slot)
      state.slots.emplace_back(elements, 0.0f);
  }
}

absl::Status LoneSession::BeginWith(const std::vector<TableState>& states) {
  SL_RETURN_IF_ERROR(
      CheckTableStates(states, parameters_.tables(), config::ClusterConfig()));
  for (size_t table = 0; table < states_.size(); ++table) {
    State& state = states_[table];
    state.updates = states[table].updates;
    for (size_t slot = 0; slot < state.slots.size(); ++slot) {
      const Payload& from = states[table].slots[slot];
      std::memcpy(state.slots[slot].data(), from.data(), from.size());
    }
  }
  return absl::OkStatus();
}

std::optional<Session::Task> LoneSession::Next() {
  if (!ending_.ok()) return std::nullopt;
  const std::optional<LoneSteps::Task> task = steps_.Next();
  if (!task.has_value()) return std::nullopt;
  if (const auto* const step = std::get_if<LoneSteps::Step>(&*task)) {
    return Session::Step{
        .clock = step->clock, .keeps_model = true, .examples = step->examples};
  }
  if (const auto* const evaluate = std::get_if<LoneSteps::Evaluate>(&*task)) {
    return Session::Evaluation{.clock = evaluate->clock,
                               .since = absl::InfinitePast(),
                               .parameters = TakeSnapshot(parameters_)};
  }
  return Session::Conclusion();
}

absl::Status LoneSession::FinishStep(absl::Span<const Gradient> gradients) {
  SL_CHECK(gradients.size() == rules_.size(),
           "a gradient, or none, of each table");
  if (!ending_.ok() || !steps_.is_open()) return ending_;
  for (size_t table = 0; table < gradients.size(); ++table) {
    const Gradient& gradient = gradients[table];
    if (gradient.values == nullptr) continue;
    const std::string& name = parameters_.tables()[table].name();
    if (const std::string fault = FaultOf(gradient.options); !fault.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the gradient of '", name, "' has ", fault));
    }
    SL_RETURN_IF_ERROR(
        CheckMomentum(gradient.options, rules_[table].optimizer, name));
  }
  for (size_t table = 0; table < gradients.size(); ++table) {
    if (gradients[table].values == nullptr || IsFinite(table, gradients[table]))
      continue;
    ending_ = absl::FailedPreconditionError(absl::StrCat(
        "step ", steps_.clock(), ": the gradient of '",
        parameters_.tables()[table].name(),
        "' has a NaN or an infinity; it is not in the model; lower the "
        "learning rate, or look at the data"));
    return ending_;
  }
  for (size_t table = 0; table < gradients.size(); ++table)
    if (gradients[table].values != nullptr) Apply(table, gradients[table]);
  steps_.OnStep();
  return absl::OkStatus();
}

bool LoneSession::IsFinite(size_t table, const Gradient& gradient) {
  return optim::AllFinite(
      reinterpret_cast<const std::byte*>(gradient.values),
      parameters_.parameter(static_cast<int>(table)).size());
}

void LoneSession::Apply(size_t table, const Gradient& gradient) {
  const absl::Span<float> parameter =
      parameters_.parameter(static_cast<int>(table));
  State& state = states_[table];
  ++state.updates;
  const auto* const bytes = reinterpret_cast<const std::byte*>(gradient.values);
  Optimizer::ApplyArgs args;
  args.in = parameter.data();
  args.out = parameter.data();
  for (size_t slot = 0; slot < state.slots.size(); ++slot)
    args.slots[slot] = state.slots[slot].data();
  args.gradients = absl::MakeConstSpan(&bytes, 1);
  args.elements = parameter.size();
  args.numbers = rules_[table].NumbersAt(steps_.clock(), gradient.options);
  args.update_count = state.updates;
  rules_[table].optimizer.Apply(args);
}

std::vector<TableState> LoneSession::OptimizerState() const {
  std::vector<TableState> states;
  for (const State& of_table : states_) {
    TableState& state = states.emplace_back();
    state.updates = of_table.updates;
    for (const std::vector<float>& slot : of_table.slots)
      state.slots.push_back(
          Payload::Copy(slot.data(), slot.size() * sizeof(float)));
  }
  return states;
}

}  // namespace slackline
