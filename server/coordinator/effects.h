// What the coordinator does in answer to an event. Its parts append to one of
// these; the driver (coordinator_thread.h) carries it out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/message.h"
#include "proto/checkpoint.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/state/state_store.h"

namespace slackline {

struct CoordinatorEffects {
  std::vector<Outgoing> sends;
  std::vector<run::MetricRecord> records;  // New ones, to be kept.
  std::vector<run::MoveRecord> moves;      // Done ones, to be kept.
  std::vector<run::ModeRecord> modes;      // Done changes, to be kept.
  std::vector<std::string> log;            // Sentences for people.
  std::vector<std::string> warnings;       // Sentences: what should not be.
  // Workers that were removed although they are heard: they held others up.
  std::vector<Incarnation> removed;
  // All parts of this cut are on the disk: CompleteCheckpoint(), on a thread
  // that nobody waits for, and then CoordinatorCore::OnCheckpoint(). After what
  // is given up.
  struct Complete {
    int32_t cut = 0;
    checkpoint::Manifest manifest;
  };
  std::optional<Complete> complete;
  // A cut: RemovePartial(), on that thread.
  std::optional<int32_t> give_up;
  // An evaluation that is better than all before it, without a folder: on that
  // thread BestKeeper::Keep(), and then CoordinatorCore::OnBestCheckpoint().
  std::optional<run::BestCheckpoint> best;
  // What the next coordinator has to know of all this (state_store.h): to be
  // kept before anything of it leaves the process.
  std::vector<StateChange> state;
};

// The answer to a call. The core stamps it with the run and the view's number.
inline Outgoing AnswerTo(const PeerId& to, uint64_t call_id, wire::Code code,
                         const std::string& error = "") {
  Outgoing out{.to = to, .message = {}};
  wire::CallReply& reply = *out.message.header.mutable_call_reply();
  reply.set_call_id(call_id);
  reply.set_code(code);
  reply.set_error(error);
  return out;
}

}  // namespace slackline
