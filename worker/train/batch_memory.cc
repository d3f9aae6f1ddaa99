#include "worker/train/batch_memory.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

BatchMemory::BatchMemory(int64_t examples_max, const Dataset& data)
    : examples_max_(static_cast<size_t>(examples_max)),
      inputs_(examples_max_ * static_cast<size_t>(data.features())) {
  if (data.classes() > 0) {
    labels_.resize(examples_max_);
  } else {
    numbers_.resize(examples_max_);
  }
}

Batch BatchMemory::Fill(const Dataset& data, absl::Span<const int64_t> rows) {
  SL_CHECK(rows.size() <= examples_max_,
           absl::StrCat(rows.size(), " of ", examples_max_, " examples"));
  Batch batch = {.examples = static_cast<int64_t>(rows.size()),
                 .inputs = inputs_.data()};
  if (data.classes() > 0) {
    data.Gather(rows, inputs_.data(), labels_.data());
    batch.labels = labels_.data();
  } else {
    data.Gather(rows, inputs_.data(), numbers_.data());
    batch.numbers = numbers_.data();
  }
  return batch;
}

}  // namespace slackline
