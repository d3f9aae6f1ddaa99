// Distinct types for the things that are numbered, so that they cannot be mixed
// up.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace slackline {

enum class Rank : int32_t {};         // A worker; [0, world size).
enum class ServerIndex : int32_t {};  // A server process, as in the config.
enum class TableId : int32_t {};      // Index into View::table.
enum class ShardId : int32_t {};      // Numbered over all tables of a job.

// Steps completed. Clock c means: the pushes of steps 0 .. c-1 are done.
using Clock = int64_t;
// Clocks are at most this, so that a bound can be added and subtracted.
inline constexpr Clock kClockMax = Clock{1} << 60;
// Updates applied to a shard since its initial values.
using Version = uint64_t;
// Versions are at most this, so that updates can be counted on.
inline constexpr Version kVersionMax = Version{1} << 60;
// One life of a member. The coordinator gives them out; never used again.
using Incarnation = uint64_t;

// A shard thread of a server.
struct Owner {
  int32_t server = 0;
  int32_t thread = 0;
  auto operator<=>(const Owner&) const = default;
};

// Who sends or receives a message. Text form, for example "worker.2.17", is
// also the ZeroMQ routing id.
struct PeerId {
  enum class Kind {
    kWorker,
    kServer,
    kObserver,
    kCoordinator,
    kShardThread,
    kSum,  // A worker's connections for sums, beside those of kWorker.
  };
  Kind kind = Kind::kObserver;
  int32_t index = 0;  // Rank, server index; 0 for the others.
  // Worker to shard thread, for sums too: the incarnation. Anybody to the
  // coordinator: the token of the process. Shard thread: the thread index.
  uint64_t instance = 0;
  auto operator<=>(const PeerId&) const = default;

  std::string ToString() const;
  // False if `text` is not a PeerId's text form; `*peer` is unchanged then.
  static bool FromString(const std::string& text, PeerId* peer);
};

}  // namespace slackline
