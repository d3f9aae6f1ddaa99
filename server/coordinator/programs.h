// Programs: which programs the members of a run are, for its summary and for
// people who have different ones on different hosts.
//
// Deterministic. Thread-compatible.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "proto/control.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/run.pb.h"

namespace slackline {

class Programs {
 public:
  // `own`: of the coordinator.
  explicit Programs(wire::Build own) : own_(std::move(own)) {}

  // A member has joined. A sentence if it is of another version or commit than
  // the coordinator, the first time that one of these is; else empty.
  std::string OnJoin(const wire::JoinRequest& join);

  void PutSummary(run::Summary* summary) const;

  // For the next coordinator.
  coordinator::ProgramsState Keep() const;
  void Load(const coordinator::ProgramsState& state);
  bool TakeNews() { return std::exchange(news_, false); }

  static constexpr size_t kKindsMax = 64;  // What comes beyond is not listed.

 private:
  struct Members {
    wire::Build build;
    std::set<int32_t> servers;  // Indices.
    std::set<int32_t> workers;  // Ranks.
  };

  const wire::Build own_;
  std::map<std::string, Members> kinds_;  // By the bytes of the build.
  bool news_ = false;
};

}  // namespace slackline
