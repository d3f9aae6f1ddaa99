// What the collectives of simulated scripts must give: one result for all who
// call at a place, with what each worker has brought there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/membership/member_core.h"
#include "common/payload.h"

namespace slackline::sim {

class SimGathers {
 public:
  // `report` is told what is wrong.
  explicit SimGathers(std::function<void(const std::string&)> report)
      : report_(std::move(report)) {}

  // What a worker brings.
  static Payload Brought(Rank rank, uint64_t place);
  // A worker has its answer. `founder`: it is in its first life, so the others
  // have waited for it.
  void OnAnswer(Rank rank, uint64_t place, bool founder,
                const MemberCore::CallResult& answer);

  int64_t results() const { return static_cast<int64_t>(results_.size()); }
  int64_t answers() const { return answers_; }
  // Results without some worker of the job.
  int64_t partial(int workers) const;

 private:
  std::function<void(const std::string&)> report_;
  std::map<uint64_t, std::vector<int32_t>> results_;  // The ranks, by place.
  int64_t answers_ = 0;
};

}  // namespace slackline::sim
