#include "server/coordinator/after_the_end.h"

#include <algorithm>

namespace slackline {

bool AfterTheEnd::OnEnded(absl::Time awake) {
  if (ended_at_ != absl::InfiniteFuture()) return false;
  ended_at_ = awake;
  return true;
}

bool AfterTheEnd::Over(absl::Time awake, uint64_t view_number) const {
  if (ended_at_ == absl::InfiniteFuture()) return false;
  if (awake > OverBy()) return true;
  if (inspections_.waited_for()) return false;  // Members tell what they have.
  if (awake <= members_.AskedUntil()) return false;
  return std::all_of(members_.all().begin(), members_.all().end(),
                     [&](const auto& entry) {
                       return entry.second.view_known >= view_number;
                     });
}

absl::Time AfterTheEnd::OverBy() const {
  const absl::Time known_by = std::max(ended_at_, found_by_) + lease_;
  // A lease may be shorter than what it takes to write down a timeline.
  return inspections_.waited_for() ? known_by + Inspections::kPatience
                                   : known_by;
}

}  // namespace slackline
