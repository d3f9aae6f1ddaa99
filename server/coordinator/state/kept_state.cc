#include "server/coordinator/state/kept_state.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace slackline {
namespace {

constexpr int kDigits = 20;  // Of the largest number.

// Equal messages have equal bytes.
std::string BytesFor(const google::protobuf::MessageLite& value) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  value.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

std::string NumberedKey(absl::string_view prefix, uint64_t number) {
  return absl::StrFormat("%s/%0*d", prefix, kDigits, number);
}

coordinator::Peer PeerState(const PeerId& peer) {
  coordinator::Peer state;
  state.set_kind(static_cast<int32_t>(peer.kind));
  state.set_index(peer.index);
  state.set_instance(peer.instance);
  return state;
}

absl::StatusOr<PeerId> PeerOf(const coordinator::Peer& state) {
  constexpr auto kLast = static_cast<int32_t>(PeerId::Kind::kShardThread);
  if (state.kind() < 0 || state.kind() > kLast) {
    return absl::InvalidArgumentError(
        absl::StrCat("a peer of kind ", state.kind(), ", of 0 to ", kLast));
  }
  return PeerId{.kind = static_cast<PeerId::Kind>(state.kind()),
                .index = state.index(),
                .instance = state.instance()};
}

void KeptState::Put(const std::string& key,
                    const google::protobuf::MessageLite& value) {
  std::string bytes = BytesFor(value);
  const auto [at, is_new] = state_.try_emplace(key);
  if (!is_new && at->second == bytes) return;
  at->second = bytes;
  changes_.push_back({.key = key, .value = std::move(bytes)});
}

void KeptState::PutOnce(const std::string& key,
                        absl::FunctionRef<std::string()> value) {
  if (!state_.try_emplace(key).second) return;
  changes_.push_back({.key = key, .value = value()});
}

void KeptState::Remove(const std::string& key) {
  if (state_.erase(key) == 0) return;
  changes_.push_back({.key = key, .value = std::nullopt});
}

std::vector<std::string> KeptState::KeysOf(absl::string_view prefix) const {
  std::vector<std::string> keys;
  for (auto at = state_.lower_bound(std::string(prefix));
       at != state_.end() && absl::StartsWith(at->first, prefix); ++at) {
    keys.push_back(at->first);
  }
  return keys;
}

size_t KeptState::BytesOf(const std::string& key) const {
  const auto found = state_.find(key);
  return found == state_.end() ? 0 : found->second.size();
}

absl::Status StateReader::Broken(const std::string& key,
                                 const std::string& why) {
  return absl::DataLossError(
      absl::StrCat("the coordinator's state is broken at '", key, "': ", why));
}

absl::Status StateReader::Read(const std::string& key,
                               google::protobuf::MessageLite* value) const {
  const auto found = state_.find(key);
  if (found == state_.end()) return absl::OkStatus();
  if (value->ParseFromString(found->second)) return absl::OkStatus();
  return Broken(key, absl::StrCat("its ", found->second.size(),
                                  " bytes are no ", value->GetTypeName()));
}

bool StateReader::IsNumbered(const std::string& key, absl::string_view prefix,
                             uint64_t* number) {
  return key.size() == prefix.size() + 1 + kDigits &&
         absl::StartsWith(key, prefix) && key[prefix.size()] == '/' &&
         absl::SimpleAtoi(key.substr(prefix.size() + 1), number);
}

}  // namespace slackline
