// Messages of the data plane as tests want to read and write them.
#pragma once

#include <string>
#include <vector>

#include "proto/data.pb.h"

namespace slackline {

// What became of an entry of a push, pull or probe.
enum class Outcome { kNone, kOk, kParked, kRetry, kFenced, kMoved, kRejected };

inline Outcome OutcomeOf(const wire::Refusal& refusal) {
  switch (refusal.why_case()) {
    case wire::Refusal::kRetry:
      return Outcome::kRetry;
    case wire::Refusal::kFenced:
      return Outcome::kFenced;
    case wire::Refusal::kMoved:
      return Outcome::kMoved;
    case wire::Refusal::kRejected:
      return Outcome::kRejected;
    default:
      return Outcome::kNone;
  }
}
inline Outcome OutcomeOf(const wire::PushAnswer& answer) {
  return answer.has_refusal() ? OutcomeOf(answer.refusal()) : Outcome::kOk;
}
inline Outcome OutcomeOf(const wire::ProbeAnswer& answer) {
  return answer.has_refusal() ? OutcomeOf(answer.refusal()) : Outcome::kOk;
}
inline Outcome OutcomeOf(const wire::PullAnswer& answer) {
  switch (answer.what_case()) {
    case wire::PullAnswer::kValues:
    case wire::PullAnswer::kState:
      return Outcome::kOk;
    case wire::PullAnswer::kParked:
      return Outcome::kParked;
    case wire::PullAnswer::kRefusal:
      return OutcomeOf(answer.refusal());
    default:
      return Outcome::kNone;
  }
}
template <typename Answers>
std::vector<Outcome> OutcomesOf(const Answers& answers) {
  std::vector<Outcome> outcomes;
  for (const auto& answer : answers) outcomes.push_back(OutcomeOf(answer));
  return outcomes;
}

inline wire::Refusal RefusalOf(Outcome outcome, const std::string& error = "") {
  wire::Refusal refusal;
  if (outcome == Outcome::kRetry) refusal.mutable_retry();
  if (outcome == Outcome::kFenced) refusal.mutable_fenced();
  if (outcome == Outcome::kMoved) refusal.mutable_moved();
  if (outcome == Outcome::kRejected) refusal.set_rejected(error);
  return refusal;
}

// As traces and tests write it.
inline const char* WordFor(Outcome outcome) {
  constexpr const char* kWords[] = {"NONE",   "OK",    "PARKED",  "RETRY",
                                    "FENCED", "MOVED", "REJECTED"};
  return kWords[static_cast<int>(outcome)];
}

// The shards of what is in a list of pushes or answers, in order.
template <typename Entries>
std::vector<int32_t> ShardsOf(const Entries& entries) {
  std::vector<int32_t> shards;
  for (const auto& entry : entries) shards.push_back(entry.shard());
  return shards;
}
inline std::vector<int32_t> ShardsOf(const wire::PullRequest& request) {
  std::vector<int32_t> shards;
  for (const wire::Pull& pull : request.pull())
    shards.insert(shards.end(), pull.shard().begin(), pull.shard().end());
  return shards;
}

}  // namespace slackline
