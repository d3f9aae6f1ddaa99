#include "worker/client/push_clock.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

absl::Status PushClock::Check(Clock clock, TableId table,
                              const View& view) const {
  const int index = static_cast<int>(table);
  if (index < 0 || index >= static_cast<int>(pushed_.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push to table ", index, ": the job has ", pushed_.size(), " tables"));
  }
  const bool pushed = pushed_[static_cast<size_t>(index)];
  if (clock != clock_ || pushed) {
    return absl::InvalidArgumentError(
        absl::StrCat("push to ", view.table(table).name(), " of clock ", clock,
                     ": expected clock ", clock_,
                     pushed ? ", to which this table was pushed already" : ""));
  }
  return absl::OkStatus();
}

bool PushClock::End(TableId table) {
  pushed_[static_cast<size_t>(table)] = true;
  if (++count_ < pushed_.size()) return false;
  std::fill(pushed_.begin(), pushed_.end(), false);
  count_ = 0;
  ++clock_;
  pull_behind_ = 0;
  return true;
}

void PushClock::PullBehind(uint64_t pull_id) {
  SL_CHECK(BetweenClocks() && pull_behind_ == 0,
           "a pull goes behind all pushes of a clock");
  pull_behind_ = pull_id;
}

}  // namespace slackline
