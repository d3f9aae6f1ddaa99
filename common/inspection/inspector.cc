#include "common/inspection/inspector.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

constexpr size_t kStacksMax = 8;  // That are being taken.
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr absl::Duration kTimelineMax = absl::Minutes(10);

}  // namespace

void Inspector::Refuse(uint64_t number, const std::string& why) {
  Answer answer;
  answer.inspected.set_number(number);
  answer.inspected.set_error(why);
  answers_.push_back(std::move(answer));
}

Inspector::~Inspector() {
  if (timeline_.has_value() && !timeline_->taken.valid())
    (void)sources_.end_timeline(0);
}

bool Inspector::IsUnderWay(uint64_t number) const {
  return (timeline_.has_value() && timeline_->number == number) ||
         std::any_of(stacks_.begin(), stacks_.end(), [&](const Stacks& stacks) {
           return stacks.number == number;
         });
}

void Inspector::AskStacks(uint64_t number) {
  if (!sources_.stacks)
    return Refuse(number, "this program does not tell its stacks");
  if (stacks_.size() == kStacksMax) {
    return Refuse(
        number,
        absl::StrCat(kStacksMax, " times its stacks are being taken already"));
  }
  try {
    stacks_.push_back(
        {.number = number,
         .taken = std::async(std::launch::async, sources_.stacks)});
  } catch (const std::system_error& none) {
    Refuse(number, absl::StrCat("no thread to take them on: ", none.what()));
  }
}

void Inspector::Ask(const wire::Inspection& inspection, absl::Time now) {
  const uint64_t number = inspection.number();
  if (IsUnderWay(number)) return;
  if (inspection.has_stacks()) {
    AskStacks(number);
  } else if (inspection.has_timeline()) {
    if (!sources_.begin_timeline || !sources_.end_timeline)
      return Refuse(number, "this program does not record timelines");
    if (timeline_.has_value())
      return Refuse(number, "another timeline is being recorded");
    const absl::Duration time =
        std::clamp(absl::Milliseconds(inspection.timeline().ms()),
                   absl::ZeroDuration(), kTimelineMax);
    sources_.begin_timeline(time);
    timeline_ = {.number = number,
                 .bytes_max = inspection.timeline().bytes_max(),
                 .until = now + time,
                 .taken = {}};
  } else {
    Refuse(number, "this version does not know what is asked");
  }
}

void Inspector::End() {
  ended_ = true;
  if (timeline_.has_value()) timeline_->until = absl::InfinitePast();
}

void Inspector::TakeStacks() {
  for (auto stacks = stacks_.begin(); stacks != stacks_.end();) {
    if (stacks->taken.wait_for(std::chrono::seconds(0)) !=
        std::future_status::ready) {
      ++stacks;
      continue;
    }
    const uint64_t number = stacks->number;
    std::future<wire::Stacks> taken = std::move(stacks->taken);
    stacks = stacks_.erase(stacks);
    try {
      Answer answer;
      answer.inspected.set_number(number);
      *answer.inspected.mutable_stacks() = taken.get();
      answers_.push_back(std::move(answer));
    } catch (const std::exception& failure) {
      Refuse(number, failure.what());
    }
  }
}

void Inspector::TakeTimeline(absl::Time now) {
  if (!timeline_.has_value() || now < timeline_->until) return;
  if (!timeline_->taken.valid()) {
    const int64_t bytes_max = timeline_->bytes_max;
    // While the job runs, the caller has more to do; afterwards nobody waits
    // for a thread.
    try {
      timeline_->taken =
          std::async(ended_ ? std::launch::deferred : std::launch::async,
                     sources_.end_timeline, bytes_max);
    } catch (const std::system_error&) {
      timeline_->taken =
          std::async(std::launch::deferred, sources_.end_timeline, bytes_max);
    }
  }
  if (!ended_ && timeline_->taken.wait_for(std::chrono::seconds(0)) ==
                     std::future_status::timeout) {
    return;
  }
  const uint64_t number = timeline_->number;
  std::future<std::string> taken = std::move(timeline_->taken);
  timeline_.reset();
  try {
    const std::string part = taken.get();
    Answer answer;
    answer.inspected.set_number(number);
    answer.inspected.mutable_timeline();
    answer.frame = Payload::Copy(part.data(), part.size());
    answers_.push_back(std::move(answer));
  } catch (const std::exception& failure) {
    Refuse(number, failure.what());
  }
}

std::vector<Inspector::Answer> Inspector::TakeAnswers(absl::Time now) {
  TakeStacks();
  TakeTimeline(now);
  return std::exchange(answers_, {});
}

absl::Time Inspector::NextWakeup(absl::Time now) const {
  absl::Time next = absl::InfiniteFuture();
  if (timeline_.has_value())
    next = timeline_->taken.valid() ? now + kLook : timeline_->until;
  if (!stacks_.empty()) next = std::min(next, now + kLook);
  if (!answers_.empty()) next = now;
  return next;
}

}  // namespace slackline
