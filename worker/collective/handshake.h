// How the two ends of a new connection between ranks find out that they are of
// the same group, and, if the job has a key, that both know it.
//
//   connecting end                                         accepting end
//     greeting (32 bytes) [point (32)]            ->
//           <- greeting (32) [point (32), proof (20)]
//                                      [proof (20)]  ->
//
// What is in brackets is said in a group with a key only. A greeting names the
// rank that speaks, what the connection is for, and the number that either rank
// has drawn for this group and put in the store, so one that was recorded in
// another group, or comes back to who has said it, is of no use.
//
// A point is a public key of X25519 (RFC 7748) that was made for this
// connection. The keys of its two directions are derived from the key of the
// group, of which they are a keyed hash (Secret::Derive) of all that was said
// until then, the secret that the two points have in common, the group, and
// which end sends. So
//   - nobody without the key of the group has them, whoever is in the middle,
//   - a recorded connection cannot be played again: the other point is new,
//   - who steals the key of the group later cannot read what was recorded.
// A proof is the first record of a direction (records.h), without text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/keys/secret.h"
#include "worker/collective/records.h"

namespace slackline {

enum class Purpose : uint32_t { kToAll = 1, kRing = 2 };

// All integers as the machine has them: ranks run the same build.
struct Greeting {
  static constexpr uint32_t kPlain = 0x536c7463;
  static constexpr uint32_t kKeyed = 0x536c746b;
  uint32_t kind = kPlain;
  int32_t rank = 0;
  Purpose purpose = Purpose::kToAll;
  uint32_t zero = 0;
  uint64_t from = 0;  // The number of this rank, and that of the other.
  uint64_t to = 0;
};
static_assert(sizeof(Greeting) == 32);

// What all handshakes of one rank in one group have in common.
struct HandshakeSelf {
  int rank = 0;
  std::vector<uint64_t> numbers;  // By rank.
  std::string group;
  std::optional<Secret> key;
  // Whether this rank waits for such a connection. Asked while it accepts one.
  std::function<bool(int rank, Purpose purpose)> awaits;
};

// One end. Pure but for the random numbers; thread-compatible.
class Handshake {
 public:
  enum class State {
    kGoesOn,
    kDone,      // The other is `rank()`, and the connection for `purpose()`.
    kStranger,  // The other is none of this group.
    // The other says that it is `rank()`, and
    kHasNoKey,     // has no key, while this group has one,
    kHasKey,       // has a key, while this group has none,
    kHasOtherKey,  // has another key.
  };

  // The end that connects to `rank`, or that which accepts. `self` outlives it.
  static Handshake Connect(const HandshakeSelf& self, int rank,
                           Purpose purpose);
  static Handshake Accept(const HandshakeSelf& self);

  // What this end has to send, to be taken after each of these calls, whatever
  // its state: at most kSaidBytesMax.
  std::string TakeSaid() { return std::exchange(said_, ""); }
  static constexpr size_t kSaidBytesMax =
      sizeof(Greeting) + Secret::kBytes + kRecordOverheadBytes;

  // For the bytes that are to come next. Never more than the other says before
  // it has an answer, and nothing of what follows the handshake.
  absl::Span<std::byte> Room();
  // So many have come there.
  State OnHeard(size_t bytes);

  State state() const { return state_; }
  // The other's rank, as it says; -1 at the end that accepts until the other
  // has greeted.
  int rank() const { return rank_; }
  Purpose purpose() const { return purpose_; }
  // The other has read the numbers of this group, as far as one can tell.
  bool greeted() const { return greeted_; }

  // What seals and opens the stream that follows, once the handshake is done;
  // nullopt: without a key.
  std::optional<RecordSealer>& sealer() { return sealer_; }
  std::optional<RecordOpener>& opener() { return opener_; }

 private:
  using Point = std::array<uint8_t, Secret::kBytes>;
  // What was heard and not yet understood.
  enum class Awaits { kGreeting, kPoint, kPointAndProof, kProof };

  Handshake(const HandshakeSelf& self, bool connects);
  size_t AwaitedBytes() const;
  void SayGreeting(uint64_t to);
  void SayPoint();  // A new one.
  State OnGreeting();
  // False: the point is none that a rank could have.
  bool OnPoint();
  State OnProof(const std::byte* proof);
  void SayProof();

  const HandshakeSelf* self_;
  bool connects_;
  State state_ = State::kGoesOn;
  int rank_ = -1;
  Purpose purpose_ = Purpose::kToAll;
  bool greeted_ = false;

  std::optional<Secret> own_scalar_;  // own_point_'s, until that has served.
  Greeting own_greeting_;
  Point own_point_ = {};
  Greeting greeting_;  // The other's.
  Point point_ = {};

  Awaits awaits_ = Awaits::kGreeting;
  std::array<std::byte, Secret::kBytes + kRecordOverheadBytes> heard_ = {};
  size_t heard_bytes_ = 0;
  std::string said_;
  std::optional<RecordSealer> sealer_;
  std::optional<RecordOpener> opener_;
};

}  // namespace slackline
