// What a coordinator keeps for the one after it, by key: what is new of it, and
// how it is read again. proto/coordinator_state.proto says what there is.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "google/protobuf/message_lite.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/state/state_store.h"

namespace slackline {

// "member/00000000000000000017": in the order of the numbers.
std::string NumberedKey(absl::string_view prefix, uint64_t number);

coordinator::Peer PeerState(const PeerId& peer);
// InvalidArgument: it is no peer.
absl::StatusOr<PeerId> PeerOf(const coordinator::Peer& state);

// The writing side. Thread-compatible.
class KeptState {
 public:
  // What was kept before is not new.
  void Load(const CoordinatorState& state) { state_ = state; }

  // The value is new unless the key has these very bytes.
  void Put(const std::string& key, const google::protobuf::MessageLite& value);
  // Puts the value of a key that is not there yet, and that never changes then.
  // `value` is called only in that case.
  void PutOnce(const std::string& key, absl::FunctionRef<std::string()> value);
  // It has no effect if the key is not there.
  void Remove(const std::string& key);
  bool Has(const std::string& key) const { return state_.count(key) > 0; }
  // All keys with this prefix, in order.
  std::vector<std::string> KeysOf(absl::string_view prefix) const;
  // Bytes of the value; 0: there is none.
  size_t BytesOf(const std::string& key) const;

  // In the order in which they were made.
  std::vector<StateChange> TakeChanges() { return std::exchange(changes_, {}); }

 private:
  CoordinatorState state_;  // Values of PutOnce() are left out.
  std::vector<StateChange> changes_;
};

// The reading side. Errors are DataLoss, and name the key. Thread-compatible.
class StateReader {
 public:
  // `state` outlives it.
  explicit StateReader(const CoordinatorState& state) : state_(state) {}

  bool Has(const std::string& key) const { return state_.count(key) > 0; }
  // Leaves the message as it is if the key is not there.
  absl::Status Read(const std::string& key,
                    google::protobuf::MessageLite* value) const;
  // Reads the message of each key "PREFIX/N", in the order of N. Stops at the
  // first error.
  template <typename Message>
  absl::Status ReadAll(
      absl::string_view prefix,
      absl::FunctionRef<absl::Status(uint64_t, const Message&)> visit) const {
    for (auto at = state_.lower_bound(absl::StrCat(prefix, "/"));
         at != state_.end(); ++at) {
      Message value;
      uint64_t number = 0;
      if (!IsNumbered(at->first, prefix, &number)) break;
      if (absl::Status read = Read(at->first, &value); !read.ok()) return read;
      if (absl::Status seen = visit(number, value); !seen.ok())
        return Broken(at->first, std::string(seen.message()));
    }
    return absl::OkStatus();
  }
  static absl::Status Broken(const std::string& key, const std::string& why);

 private:
  static bool IsNumbered(const std::string& key, absl::string_view prefix,
                         uint64_t* number);

  const CoordinatorState& state_;
};

}  // namespace slackline
