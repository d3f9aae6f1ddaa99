#include "server/coordinator/state/state_batch.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "proto/state_batch.pb.h"

namespace slackline {
namespace {

struct Heading {
  uint64_t bytes = 0;
  uint64_t content_hash = 0;
  uint64_t hash = 0;  // Of the two before.
};
constexpr uint32_t kEnd = 127;  // state.Batch.end.
constexpr size_t kHashedBytes = offsetof(Heading, hash);

uint64_t HashOf(const Heading& heading) {
  return BytesHash(&heading, kHashedBytes);
}

absl::Status CheckSize(size_t bytes) {
  if (bytes <= kStateBytesMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the state of the coordinator would have ", bytes,
                   " bytes; at most ", kStateBytesMax, " are read again"));
}

bool AllZeros(absl::string_view bytes) {
  return bytes.find_first_not_of('\0') == absl::string_view::npos;
}

absl::StatusOr<std::string> Encode(state::Batch batch) {
  batch.set_end(kEnd);
  if (const absl::Status size = CheckSize(batch.ByteSizeLong()); !size.ok())
    return size;
  const std::string content = batch.SerializeAsString();
  Heading heading = {.bytes = content.size(),
                     .content_hash = BytesHash(content.data(), content.size())};
  heading.hash = HashOf(heading);
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&heading),
                                        sizeof(heading)),
                      content);
}

void ApplyChange(const std::string& key, std::optional<std::string> value,
                 CoordinatorState* state) {
  if (value.has_value()) {
    (*state)[key] = *std::move(value);
  } else {
    state->erase(key);
  }
}

}  // namespace

absl::StatusOr<std::string> EncodeBatch(
    const std::vector<StateChange>& changes) {
  size_t bytes = 0;
  for (const StateChange& change : changes)
    bytes += change.key.size() + (change.value ? change.value->size() : 0);
  if (const absl::Status size = CheckSize(bytes); !size.ok()) return size;
  state::Batch batch;
  for (const StateChange& change : changes) {
    state::Change& added = *batch.add_change();
    added.set_key(change.key);
    if (change.value.has_value()) added.set_value(*change.value);
  }
  return Encode(std::move(batch));
}

absl::StatusOr<std::string> EncodeBatch(const CoordinatorState& state) {
  size_t bytes = 0;
  for (const auto& [key, value] : state) bytes += key.size() + value.size();
  if (const absl::Status size = CheckSize(bytes); !size.ok()) return size;
  state::Batch batch;
  for (const auto& [key, value] : state) {
    state::Change& added = *batch.add_change();
    added.set_key(key);
    added.set_value(value);
  }
  return Encode(std::move(batch));
}

absl::StatusOr<size_t> ApplyBatch(absl::string_view bytes,
                                  CoordinatorState* state) {
  Heading heading;
  if (bytes.size() < sizeof(heading)) return 0;
  std::memcpy(&heading, bytes.data(), sizeof(heading));
  bytes.remove_prefix(sizeof(heading));
  if (heading.hash != HashOf(heading)) {
    // Nothing of the content is there, so the heading may not be there either.
    if (AllZeros(bytes)) return 0;
    return absl::DataLossError(
        "the length of the batch has not the hash that stands beside it");
  }
  if (heading.bytes > bytes.size()) return 0;
  const absl::string_view content = bytes.substr(0, heading.bytes);
  state::Batch batch;
  if (heading.content_hash != BytesHash(content.data(), content.size()) ||
      content.size() > kStateBytesMax ||
      !batch.ParseFromArray(content.data(), static_cast<int>(content.size()))) {
    const size_t last = content.empty() ? 0 : content.size() - 1;
    if (AllZeros(bytes.substr(last))) return 0;
    return absl::DataLossError(
        absl::StrCat("the ", content.size(),
                     " bytes of the batch have not the hash that it says"));
  }
  for (state::Change& change : *batch.mutable_change()) {
    ApplyChange(change.key(),
                change.has_value()
                    ? std::optional(std::move(*change.mutable_value()))
                    : std::nullopt,
                state);
  }
  return sizeof(heading) + content.size();
}

void ApplyChanges(const std::vector<StateChange>& changes,
                  CoordinatorState* state) {
  for (const StateChange& change : changes)
    ApplyChange(change.key, change.value, state);
}

std::string ThisProcess() {
  std::array<char, HOST_NAME_MAX + 1> host = {};
  (void)gethostname(host.data(), host.size() - 1);
  return absl::StrCat("process ", getpid(), " of host ", host.data());
}

}  // namespace slackline
