// What the page of a job shows: how the job stands, how it came there, and what
// has happened, made of one status reply after the other. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "tools/cli/job/status_table.h"

namespace slackline {

// Thread-compatible.
class PageState {
 public:
  // At most so many points are from before the first reply.
  static constexpr size_t kEarlierPointsMax = 360;

  // `earlier`: points of EarlierPoints(), which stay.
  explicit PageState(Configured configured,
                     std::vector<nlohmann::ordered_json> earlier = {});

  // A reply that is later than those before. The fields that the page reads are
  // those of `slackline status --json`, without the shards and their loads one
  // by one, and what no field has: sentences, the busiest shards, events.
  void Update(const wire::StatusReply& status);
  // Nobody answers, and `why`, until somebody does again. The last status
  // stays.
  void SetSilence(const std::string& why);
  // Nobody will answer any more: `how` the job has ended.
  void SetEnd(const std::string& how);

  // {"status", "text", "shards", "phases", "staleness", "events", "silence",
  // "over", "history"}; the last is {"every", "count", "last"}: how many
  // replies lie between two points, how many points there are, and the newest
  // one.
  nlohmann::ordered_json Now() const;
  // All points, the oldest first: {"every", "points"}. A point has the time in
  // the job ("t", seconds), the loss and the results on the test set, and of
  // each worker and server by index, null where there is none: "clock",
  // "examples", "work", "wait" (seconds, counted since it began), "busy" (0 to
  // 1). Those of before the first reply have "rate" in place of all of these:
  // examples per second of each worker.
  nlohmann::ordered_json History() const;

 private:
  // At most so many points, the earlier ones among them; then every second one
  // of the replies goes, and only every second reply makes one from there on.
  static constexpr size_t kPointsMax = 720;
  static constexpr size_t kEventsMax = 200;

  void Remember(const wire::StatusReply& status);
  void Notice(const wire::StatusReply& status);
  void NoticeMembers(const wire::StatusReply& status);
  void NoticeStacks(const wire::StatusReply& status);
  void Tell(double seconds, const char* kind, const std::string& text);

  const Configured configured_;
  const std::vector<nlohmann::ordered_json> earlier_;
  nlohmann::ordered_json now_;
  std::string silence_;
  bool over_ = false;
  std::vector<nlohmann::ordered_json> points_;  // Of replies.
  uint64_t every_ = 1;
  uint64_t replies_ = 0;
  std::deque<nlohmann::ordered_json> events_;
  // As of the last reply, for what is new in the next one.
  std::set<std::string> members_;
  std::set<std::string> held_up_;
  std::set<std::string> slow_;
  std::map<std::string, std::string> stood_still_;  // Who, and where.
  wire::JobState state_ = wire::JOB_STATE_UNSPECIFIED;
  int64_t moves_ = 0;
  double mode_changed_at_ = -1;
  std::string checkpoint_;
  std::string checkpoint_failed_;
};

}  // namespace slackline
