// The vector loops behind Optimizer. Internal to common/optim.
#pragma once

#include <array>
#include <cstddef>

#include "absl/types/span.h"
#include "common/optim/rules/rule.h"

namespace slackline::optim {

// Little-endian floats at any alignment. `out` is `in` or disjoint from it.
struct Operands {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  // Slots that the rule does not use are null.
  std::array<std::byte*, kSlotsMax> slots = {};
  absl::Span<const std::byte* const> gradients;  // At least one.
  std::byte* sum = nullptr;  // Gets their sum, if it is not null.
};

void Update(Rule rule, const Coefficients& coefficients,
            const Operands& operands, size_t elements);

}  // namespace slackline::optim
