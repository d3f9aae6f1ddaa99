#include "common/optim/optimizer.h"

#include <cmath>
#include <string>

#include "common/optim/kernels.h"
#include "common/status.h"

namespace slackline {
namespace {

absl::Status Refuse(absl::string_view field, double value,
                    absl::string_view bound) {
  return absl::InvalidArgumentError(absl::StrCat(
      "optimizer.", field, ": value is ", value, ", ", bound, " is required"));
}

// Updates are computed in float: what is not 0 has to stay so there.
absl::Status CheckAboveZero(absl::string_view field, double value) {
  const float rounded = static_cast<float>(value);
  if (rounded > 0 && std::isfinite(rounded)) return absl::OkStatus();
  return Refuse(field, value, "a float above 0");
}

absl::Status CheckNotNegative(absl::string_view field, double value) {
  if (value >= 0 && std::isfinite(static_cast<float>(value))) {
    return absl::OkStatus();
  }
  return Refuse(field, value, "a float of at least 0");
}

absl::Status CheckFraction(absl::string_view field, double value) {
  if (value >= 0 && static_cast<float>(value) < 1) return absl::OkStatus();
  return Refuse(field, value, "at least 0 and below 1");
}

// What every kind of optimizer has.
template <typename Message>
absl::Status CheckCommon(absl::string_view kind, const Message& message) {
  const std::string rate = absl::StrCat(kind, ".learning_rate");
  if (!message.has_learning_rate()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer.", rate, ": is not set, a float above 0 is required"));
  }
  SL_RETURN_IF_ERROR(CheckAboveZero(rate, message.learning_rate()));
  return CheckNotNegative(absl::StrCat(kind, ".weight_decay"),
                          message.weight_decay());
}

template <typename Message>
absl::Status CheckAdam(absl::string_view kind, const Message& message) {
  SL_RETURN_IF_ERROR(CheckCommon(kind, message));
  SL_RETURN_IF_ERROR(
      CheckFraction(absl::StrCat(kind, ".beta1"), message.beta1()));
  SL_RETURN_IF_ERROR(
      CheckFraction(absl::StrCat(kind, ".beta2"), message.beta2()));
  // Without it, a parameter whose gradients are all 0 becomes 0 / 0.
  return CheckAboveZero(absl::StrCat(kind, ".epsilon"), message.epsilon());
}

const std::byte* AsBytes(const float* floats) {
  return reinterpret_cast<const std::byte*>(floats);
}
std::byte* AsBytes(float* floats) {
  return reinterpret_cast<std::byte*>(floats);
}

}  // namespace

absl::StatusOr<Optimizer> Optimizer::Create(const config::Optimizer& config) {
  switch (config.kind_case()) {
    case config::Optimizer::kSgd: {
      const config::Sgd& sgd = config.sgd();
      SL_RETURN_IF_ERROR(CheckCommon("sgd", sgd));
      Optimizer optimizer(Kind::kSgd);
      optimizer.learning_rate_ = sgd.learning_rate();
      optimizer.weight_decay_ = sgd.weight_decay();
      return optimizer;
    }
    case config::Optimizer::kMomentum: {
      const config::Momentum& momentum = config.momentum();
      SL_RETURN_IF_ERROR(CheckCommon("momentum", momentum));
      SL_RETURN_IF_ERROR(
          CheckFraction("momentum.momentum", momentum.momentum()));
      Optimizer optimizer(Kind::kMomentum);
      optimizer.learning_rate_ = momentum.learning_rate();
      optimizer.weight_decay_ = momentum.weight_decay();
      optimizer.momentum_ = momentum.momentum();
      return optimizer;
    }
    case config::Optimizer::kNesterov: {
      const config::Nesterov& nesterov = config.nesterov();
      SL_RETURN_IF_ERROR(CheckCommon("nesterov", nesterov));
      SL_RETURN_IF_ERROR(
          CheckFraction("nesterov.momentum", nesterov.momentum()));
      Optimizer optimizer(Kind::kNesterov);
      optimizer.learning_rate_ = nesterov.learning_rate();
      optimizer.weight_decay_ = nesterov.weight_decay();
      optimizer.momentum_ = nesterov.momentum();
      return optimizer;
    }
    case config::Optimizer::kAdagrad: {
      const config::Adagrad& adagrad = config.adagrad();
      SL_RETURN_IF_ERROR(CheckCommon("adagrad", adagrad));
      SL_RETURN_IF_ERROR(CheckAboveZero("adagrad.epsilon", adagrad.epsilon()));
      Optimizer optimizer(Kind::kAdagrad);
      optimizer.learning_rate_ = adagrad.learning_rate();
      optimizer.weight_decay_ = adagrad.weight_decay();
      optimizer.epsilon_ = adagrad.epsilon();
      return optimizer;
    }
    case config::Optimizer::kAdam: {
      const config::Adam& adam = config.adam();
      SL_RETURN_IF_ERROR(CheckAdam("adam", adam));
      Optimizer optimizer(Kind::kAdam);
      optimizer.learning_rate_ = adam.learning_rate();
      optimizer.weight_decay_ = adam.weight_decay();
      optimizer.beta1_ = adam.beta1();
      optimizer.beta2_ = adam.beta2();
      optimizer.epsilon_ = adam.epsilon();
      return optimizer;
    }
    case config::Optimizer::kAdamw: {
      const config::AdamW& adamw = config.adamw();
      SL_RETURN_IF_ERROR(CheckAdam("adamw", adamw));
      Optimizer optimizer(Kind::kAdamW);
      optimizer.learning_rate_ = adamw.learning_rate();
      optimizer.weight_decay_ = adamw.weight_decay();
      optimizer.beta1_ = adamw.beta1();
      optimizer.beta2_ = adamw.beta2();
      optimizer.epsilon_ = adamw.epsilon();
      return optimizer;
    }
    case config::Optimizer::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "optimizer: is not set, one of sgd, momentum, nesterov, adagrad, adam, "
      "adamw is required");
}

int Optimizer::slot_count() const { return optim::SlotCount(rule()); }

optim::Rule Optimizer::rule() const {
  switch (kind_) {
    case Kind::kSgd:
      return optim::Rule::kSgd;
    case Kind::kMomentum:
      return optim::Rule::kMomentum;
    case Kind::kNesterov:
      return optim::Rule::kNesterov;
    case Kind::kAdagrad:
      return optim::Rule::kAdagrad;
    case Kind::kAdam:
    case Kind::kAdamW:
      return optim::Rule::kAdam;
  }
  SL_CHECK(false, "unknown kind of optimizer");
}

optim::Coefficients Optimizer::CoefficientsOf(const ApplyArgs& args) const {
  SL_CHECK(args.update_count >= 1,
           absl::StrCat("update_count is ", args.update_count));
  optim::Coefficients c;
  c.gradient_scale = args.gradient_scale;
  c.rate = args.learning_rate;
  c.weight_decay = static_cast<float>(weight_decay_);
  c.momentum = static_cast<float>(momentum_);
  c.epsilon = static_cast<float>(epsilon_);
  if (rule() != optim::Rule::kAdam) return c;

  const double rate = args.learning_rate;
  const double t = static_cast<double>(args.update_count);
  c.beta1 = static_cast<float>(beta1_);
  c.one_minus_beta1 = static_cast<float>(1 - beta1_);
  c.beta2 = static_cast<float>(beta2_);
  c.one_minus_beta2 = static_cast<float>(1 - beta2_);
  c.rate = static_cast<float>(rate / (1 - std::pow(beta1_, t)));
  c.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2_, t)));
  if (kind_ == Kind::kAdamW) {
    c.weight_decay = 0;
    c.keep = static_cast<float>(1 - rate * weight_decay_);
  }
  return c;
}

void Optimizer::Apply(const ApplyArgs& args) const {
  SL_CHECK(!args.gradients.empty(), "an update needs at least one gradient");
  optim::Operands operands;
  operands.in = AsBytes(args.in);
  operands.out = AsBytes(args.out);
  operands.gradients = args.gradients;
  for (int slot = 0; slot < slot_count(); ++slot) {
    SL_CHECK(args.slots[slot] != nullptr, absl::StrCat("slot ", slot));
    operands.slots[slot] = AsBytes(args.slots[slot]);
  }
  optim::Update(rule(), CoefficientsOf(args), operands, args.elements);
}

}  // namespace slackline
