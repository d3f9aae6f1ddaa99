// RequestDesk: requests of workers and what becomes of them: who asks, whether
// the shard is served here or elsewhere, which requests wait until that is
// clear, and which answers wait for followers.
//
// Deterministic state machine: the time comes with ShardParts.
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/message.h"
#include "server/shard/held_answers.h"
#include "server/shard/served_shard.h"
#include "server/shard/shard_parts.h"
#include "server/shard/shard_places.h"

namespace slackline {

class RequestDesk {
 public:
  // ---- Requests.
  void OnPush(const PeerId& from, const Message& message, const ShardParts& at);
  void OnPull(const PeerId& from, const Message& message, const ShardParts& at);
  // Says which pushes of the sender have been accepted. Changes nothing.
  void OnProbe(const PeerId& from, const Message& message,
               const ShardParts& at);
  // Pushes and pulls that have waited.
  void Handle(const ShardPlaces::Requests& requests, const ShardParts& at);
  // Counts the message as malformed, and tells a worker why.
  void Refuse(const PeerId& from, const std::string& error,
              const ShardParts& at);

  // ---- Answers.
  // These pulls of a shard have to ask anew: it is here no more, or is split.
  void TurnAway(ShardId shard, absl::Span<const GatedPull> parked,
                const ShardParts& at);
  // The thread owns the shard no more after `event`, because of `why`: who has
  // waited there asks anew or elsewhere.
  void Close(ShardId shard, absl::string_view why,
             absl::FunctionRef<void(ShardPlaces::Left*)> event,
             const ShardParts& at);
  // Nobody is told any more what answers that are held say of the shard.
  void DropAbout(ShardId shard) { held_.DropAbout(shard); }
  // Followers may have what answers wait for.
  void OnConfirmed() { confirmed_ = true; }
  // Does what ShardCore::Flush() says.
  void Flush(const ShardParts& at);

  // Messages that wait for followers.
  size_t held_count() const { return held_.count(); }

 private:
  // How many phases, and how many cuts, the view of a sender has.
  struct Known {
    int32_t phases = 0;
    int32_t cuts = 0;
  };
  // Who asks, and what its view knows.
  struct Sender {
    PeerId peer;
    WorkerLife who;
    bool member = false;  // A worker of the view, and the job runs.
    bool fenced = false;  // It is certainly no worker of the view.
    uint64_t view_number = 0;
    Known known;
  };
  // What an entry for one shard meets before the shard looks at it.
  struct Admission {
    ServedShard* served = nullptr;  // It is served here.
    bool may_wait = false;          // It is not clear who owns the shard.
    // What an entry is told that is neither for a served shard nor can wait.
    std::optional<wire::Refusal> refusal;
  };

  static Sender SenderOf(const PeerId& from, const wire::Header& header,
                         Known known, const ShardParts& at);
  // How an entry of a push, pull or probe is admitted.
  static Admission Admit(const Sender& sender, int32_t shard,
                         const ShardParts& at);
  // Lets this entry for the shard, of a pull without its shards, and its
  // payloads wait, in a message to which `add` adds the entry. False if there
  // is no room.
  static bool Wait(int32_t shard, const PeerId& from,
                   const wire::Header& header,
                   const google::protobuf::MessageLite& entry,
                   absl::Span<const Payload> payloads, const ShardParts& at,
                   absl::FunctionRef<void(wire::Header*)> add);
  // The shard looks at an entry. A refusal says why it does not do what it is
  // asked; a pull that is parked or answered has none.
  static ServedShard::Pushed Push(const Sender& sender, const wire::Push& push,
                                  absl::Span<const Payload> frames,
                                  const ShardParts& at);
  static std::optional<wire::Refusal> Pull(
      const ServedShard& served, const Sender& sender,
      const std::shared_ptr<const wire::Pull>& asked, const ShardParts& at);
  // Sends to a worker: now, or when followers have what the message says. Signs
  // it.
  void Send(Outgoing out, const ShardParts& at);

  HeldAnswers held_;        // Answers that wait for followers.
  bool confirmed_ = false;  // OnConfirmed() was called since the last Flush().
};

}  // namespace slackline
