// One update of arrays that lie in one piece of memory, so that a way of
// computing it can be compared with Optimizer::Apply by comparing all of the
// memory, what lies between the arrays included.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "common/optim/optimizer.h"
#include "common/rng.h"

namespace slackline {

enum class Layout {
  kAligned,         // Every array begins at a multiple of 16 bytes.
  kEquallyShifted,  // All are equally far from one.
  kScattered,
};

struct UpdateCase {
  // Multiples of 16 bytes are the same wherever the memory is copied to.
  struct alignas(16) Block {
    float floats[4];
  };
  std::vector<Block> memory;
  // Where arrays begin, in floats.
  size_t in = 0;
  size_t out = 0;
  std::array<size_t, Optimizer::kSlotsMax> slots = {};
  std::vector<size_t> gradients;
  size_t elements = 0;
  float gradient_scale = 1;
  float learning_rate = 0;
  int64_t update_count = 1;

  size_t bytes() const { return memory.size() * sizeof(Block); }
  float* floats() { return reinterpret_cast<float*>(memory.data()); }

  // Of an update in a copy of the memory that begins at `base`. `pointers` has
  // to live as long as the result.
  Optimizer::ApplyArgs ArgsAt(float* base,
                              std::vector<const std::byte*>* pointers) const {
    pointers->clear();
    for (const size_t gradient : gradients) {
      pointers->push_back(reinterpret_cast<const std::byte*>(base + gradient));
    }
    Optimizer::ApplyArgs args;
    args.in = base + in;
    args.out = base + out;
    for (size_t k = 0; k < slots.size(); ++k) args.slots[k] = base + slots[k];
    args.gradients = *pointers;
    args.elements = elements;
    args.gradient_scale = gradient_scale;
    args.numbers.learning_rate = learning_rate;
    args.update_count = update_count;
    return args;
  }
};

// In place or not; slots at least 0, as those of squares are.
inline UpdateCase MakeUpdateCase(Rng& rng, size_t elements,
                                 size_t gradient_count, Layout layout) {
  UpdateCase result;
  const size_t shift = rng.Between(1, 3);
  size_t end = 0;
  const auto place = [&] {
    size_t begin = (end + 7) / 4 * 4;  // At least one block lies between.
    if (layout == Layout::kEquallyShifted) begin += shift;
    if (layout == Layout::kScattered) begin += rng.Below(4);
    end = begin + elements;
    return begin;
  };
  result.in = place();
  result.out = rng.Chance(0.5) ? result.in : place();
  for (size_t& slot : result.slots) slot = place();
  for (size_t k = 0; k < gradient_count; ++k) {
    result.gradients.push_back(place());
  }
  result.memory.resize(end / 4 + 2);
  float* const floats = result.floats();
  for (size_t i = 0; i < 4 * result.memory.size(); ++i) {
    floats[i] = static_cast<float>(rng.Normal());
  }
  for (const size_t slot : result.slots) {
    for (size_t i = slot; i < slot + elements; ++i) {
      floats[i] = floats[i] * floats[i];
    }
  }
  result.elements = elements;
  result.gradient_scale = 1.0f / static_cast<float>(gradient_count);
  result.learning_rate = static_cast<float>(0.1 * rng.Uniform());
  result.update_count = rng.Between(1, 1000);
  return result;
}

}  // namespace slackline
