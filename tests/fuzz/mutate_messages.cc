// How libFuzzer changes the inputs of cores. They are steps: a byte that says
// who sends when, and a message. Half of the changes are to what messages say,
// since a change of bytes rarely leaves a message that can be read.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/input.h"
#include "tests/support/strange_message.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace slackline::fuzz {
namespace {

struct Step {
  char what = 0;
  Message message;
};

std::vector<Step> StepsOf(const uint8_t* data, size_t size) {
  Input input(data, size);
  std::vector<Step> steps;
  while (!input.empty()) {
    Step step{.what = static_cast<char>(input.Byte()), .message = {}};
    if (input.TakeMessage(&step.message)) steps.push_back(std::move(step));
  }
  return steps;
}

void Change(Rng& rng, std::vector<Step>* steps) {
  const size_t at = rng.Below(steps->size());
  Step& step = (*steps)[at];
  switch (rng.Below(8)) {
    case 0:
      step.what = static_cast<char>(rng.Below(256));
      break;
    case 1:
      steps->insert(steps->begin() + static_cast<ptrdiff_t>(at), Step(step));
      break;
    case 2:
      if (steps->size() > 1)
        steps->erase(steps->begin() + static_cast<ptrdiff_t>(at));
      break;
    case 3:
      std::swap(step, (*steps)[rng.Below(steps->size())]);
      break;
    case 4:
      ChangePayloads(rng, &step.message.payloads);
      if (step.message.payloads.size() > 7) step.message.payloads.resize(7);
      break;
    default:
      ChangeField(rng, &step.message.header);
  }
}

}  // namespace
}  // namespace slackline::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned int seed) {
  using namespace slackline;
  Rng rng(seed);
  std::vector<fuzz::Step> steps = fuzz::StepsOf(data, size);
  if (steps.empty() || rng.Chance(0.5))
    return LLVMFuzzerMutate(data, size, max_size);
  for (uint64_t i = 1 + rng.Below(4); i > 0; --i) fuzz::Change(rng, &steps);
  std::string bytes;
  for (const fuzz::Step& step : steps) {
    if (step.message.header.ByteSizeLong() > 65535) continue;
    bytes.push_back(step.what);
    bytes += fuzz::BytesOf(step.message);
  }
  const size_t written = std::min(bytes.size(), max_size);
  std::memcpy(data, bytes.data(), written);
  return written;
}
