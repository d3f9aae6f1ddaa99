// PartList: the parts of the coordinator, in the one order in which all of them
// are asked whatever all parts are asked (part.h).
//
// Thread-compatible.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/part.h"

namespace slackline {

class PartList {
 public:
  // The parts outlive it.
  explicit PartList(std::vector<CoordinatorPart*> parts)
      : parts_(std::move(parts)) {}

  void OnJoined(const Member& member, CoordinatorEffects* effects);
  void OnStart(const JobStart& start, CoordinatorEffects* effects);
  void OnRunning(const Moment& moment, CoordinatorEffects* effects);
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects);

  // Asks one part after the other to draw its conclusions. Whenever one has
  // news, it begins again with the first, so a part only has its turn when all
  // before it have nothing left to do; it ends when nobody has news any more.
  // Fatal after kNewsMax news: then two parts have news of each other for ever.
  void Advance(const Moment& moment, CoordinatorEffects* effects);
  static constexpr int kNewsMax = 100;
  // A message says what parts may wait for.
  void OnNews();
  void OnEnded(const Moment& moment, CoordinatorEffects* effects);
  void AnswerCalls(CoordinatorEffects* effects);

  void Keep(absl::Time now, KeptState* kept);
  // Stops at the first part that cannot be loaded.
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects);

  // The earliest of all.
  WakeUp NextWakeUp() const;
  void OnTime(const Moment& moment, CoordinatorEffects* effects);

  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const;
  void PutSummary(run::Summary* summary) const;

 private:
  const std::vector<CoordinatorPart*> parts_;
};

}  // namespace slackline
