// CollectiveCalls: calls of workers that are answered once other workers have
// called: gathers of their programs, and the rendezvous store of collectives.
// What a gather is, is in gathers.h, and what the store is, in group_store.h.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/message.h"
#include "proto/control.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/gathers.h"
#include "server/coordinator/group_store.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"
#include "server/coordinator/state/kept_state.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class CollectiveCalls : public CoordinatorPart {
 public:
  struct Options {
    GroupStore::Options store;
    Gathers::Options gathers;
  };
  // `members` and `editor` outlive it.
  CollectiveCalls(const Options& options, const Membership* members,
                  const ViewEditor* editor)
      : members_(members),
        editor_(editor),
        store_(options.store),
        gathers_(options.gathers) {}

  // Gather, goes_on, store_put and store_get.
  static bool Takes(const wire::Call& call);
  // A call that it takes, of a worker that is a member.
  void OnCall(const Member& worker, const Message& message,
              CoordinatorEffects* effects);
  // A gather of a process that has not joined. The job has not ended.
  void OnCallBeforeStart(const PeerId& from, const Message& message,
                         CoordinatorEffects* effects);

  void OnRunning(const Moment& moment, CoordinatorEffects* effects) override;
  // Who is gone is not waited for.
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects) override;
  // Gathers that are complete, and whoever waits for a group that is over.
  void AnswerCalls(CoordinatorEffects* effects) override;

  // The gathers are kept. The store begins anew with another coordinator.
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;

  const GroupStore& store() const { return store_; }
  const Gathers& gathers() const { return gathers_; }

 private:
  static void Send(std::vector<GroupStore::Answer> answers,
                   CoordinatorEffects* effects);

  const Membership* const members_;
  const ViewEditor* const editor_;
  GroupStore store_;
  Gathers gathers_;
  bool news_ = false;  // A gather may be complete.
};

}  // namespace slackline
