#include "common/checkpoint/stored_turns.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

bool IsHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

// What the pieces of one shard have in common, without what is of each piece.
wire::Turns InCommon(wire::Turns turns) {
  for (wire::Turns::Waiting& waiting : *turns.mutable_waiting()) {
    waiting.clear_base();
    waiting.clear_rms();
  }
  for (wire::Turns::Kept& kept : *turns.mutable_kept()) kept.clear_version();
  return turns;
}

}  // namespace

std::string TurnsText(const wire::Turns& turns) {
  return absl::BytesToHexString(turns.SerializeAsString());
}

std::optional<wire::Turns> ParseTurnsText(absl::string_view text) {
  wire::Turns turns;
  if (text.size() % 2 != 0 || !std::all_of(text.begin(), text.end(), IsHex) ||
      !turns.ParseFromString(absl::HexStringToBytes(text)) ||
      TurnsText(turns) != text) {
    return std::nullopt;
  }
  return turns;
}

absl::Status TurnsOfPieces::Add(const wire::Turns* turns, int64_t elements) {
  const bool first = pieces_++ == 0;
  if (first && turns != nullptr) {
    whole_ = *turns;
    rms_.resize(static_cast<size_t>(turns->waiting_size()));
  }
  if (whole_.has_value() != (turns != nullptr) ||
      (turns != nullptr && InCommon(*turns).SerializeAsString() !=
                               InCommon(*whole_).SerializeAsString())) {
    if (whole_.has_value() && turns != nullptr &&
        whole_->plan() != turns->plan()) {
      return absl::FailedPreconditionError(
          absl::StrCat("its pieces have other turns than each other, those of "
                       "shards ",
                       whole_->plan(), " and ", turns->plan(),
                       " of the delays; go on with the same limits { "
                       "shard_kib: ... }"));
    }
    return absl::FailedPreconditionError(
        "its pieces have other turns than each other, because a gradient was "
        "discarded for one of them and not for the other after they were "
        "split; go on from another checkpoint, or take the model with "
        "slackline export");
  }
  if (turns == nullptr) return absl::OkStatus();
  for (int i = 0; i < turns->waiting_size(); ++i) {
    const wire::Turns::Waiting& waiting = turns->waiting(i);
    wire::Turns::Waiting& of_whole = *whole_->mutable_waiting(i);
    of_whole.set_base(std::max(of_whole.base(), waiting.base()));
    RunningRmsOfParts& rms = rms_[static_cast<size_t>(i)];
    rms.Add(RunningRms(waiting.rms(), 1), elements);
    of_whole.set_rms(rms.Whole().mean());
  }
  for (int i = 0; i < turns->kept_size(); ++i) {
    wire::Turns::Kept& kept = *whole_->mutable_kept(i);
    kept.set_version(std::max(kept.version(), turns->kept(i).version()));
  }
  return absl::OkStatus();
}

std::optional<wire::Turns> TurnsOfPieces::Whole() const { return whole_; }

}  // namespace slackline
