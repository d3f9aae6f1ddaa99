// Inspector: answers what users ask a process about itself (wire::Inspection),
// for the driver of its MemberCore. Stacks are taken on a thread of their own,
// since that may take a second; timelines are begun, and collected when their
// time is over.
//
// Costs nothing while nothing is asked. Thread-compatible; the destructor waits
// for stacks that are being taken, and ends a timeline.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/payload.h"
#include "proto/inspection.pb.h"

namespace slackline {

class Inspector {
 public:
  // What the process can tell. An empty function: it cannot, and says so.
  struct Sources {
    // Any thread; returns within seconds, whatever the process does.
    std::function<wire::Stacks()> stacks;
    // Everything that is done from now on, for so long, is to be noted; then
    // what was noted, as a serialized timeline::Part of at most so many bytes.
    // These come in turns; the second one from any thread, since it takes long.
    std::function<void(absl::Duration)> begin_timeline;
    std::function<std::string(int64_t bytes_max)> end_timeline;
  };
  struct Answer {
    wire::Inspected inspected;
    Payload frame;  // Of a timeline.
  };

  explicit Inspector(Sources sources) : sources_(std::move(sources)) {}
  ~Inspector();
  Inspector(const Inspector&) = delete;
  Inspector& operator=(const Inspector&) = delete;

  // A number that is under way already is ignored.
  void Ask(const wire::Inspection& inspection, absl::Time now);
  // The job has ended: what there is of a timeline is all, and is taken at
  // once.
  void End();
  // What can be answered by now, once.
  std::vector<Answer> TakeAnswers(absl::Time now);
  // When there may be an answer; InfiniteFuture: nothing is asked.
  absl::Time NextWakeup(absl::Time now) const;

 private:
  struct Stacks {
    uint64_t number = 0;
    std::future<wire::Stacks> taken;
  };
  struct Timeline {
    uint64_t number = 0;
    int64_t bytes_max = 0;
    absl::Time until;
    std::future<std::string> taken;  // Valid once it is over.
  };
  bool IsUnderWay(uint64_t number) const;
  void AskStacks(uint64_t number);
  void TakeStacks();
  void TakeTimeline(absl::Time now);
  void Refuse(uint64_t number, const std::string& why);

  const Sources sources_;
  std::deque<Stacks> stacks_;
  std::optional<Timeline> timeline_;
  std::vector<Answer> answers_;
  bool ended_ = false;
};

}  // namespace slackline
