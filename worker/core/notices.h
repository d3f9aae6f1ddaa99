// Notices: calls to the coordinator that a worker makes without waiting for
// their answers. A refusal is said in the log, once.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/membership/member_core.h"

namespace slackline {

class Notices {
 public:
  void OnSent(uint64_t call) { calls_.insert(call); }
  // Whether this is the answer to one of them; its sentence goes to `*log`, if
  // it is a refusal.
  bool OnAnswer(const MemberCore::CallResult& answer,
                std::vector<std::string>* log);

 private:
  std::set<uint64_t> calls_;  // They are not answered yet.
};

}  // namespace slackline
