#include "worker/collective/sealed_stream.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace slackline {

SealedStream::SealedStream(Descriptor socket, RecordSealer sealer,
                           RecordOpener opener, size_t text_bytes_max)
    : Stream(std::move(socket)),
      sealer_(std::move(sealer)),
      text_bytes_max_(text_bytes_max),
      record_(text_bytes_max + kRecordOverheadBytes),
      reader_(std::move(opener), text_bytes_max) {}

Stream::Outcome SealedStream::Send(absl::Span<const std::byte> data) {
  const auto send_on = [&] {
    const Outcome outcome =
        SendSome(absl::MakeConstSpan(record_).subspan(sent_, sealed_ - sent_));
    sent_ += outcome.bytes;
    return outcome;
  };
  bool moved = false;
  if (has_unsent()) {
    const Outcome outcome = send_on();
    if (outcome.result != Result::kMoved) return outcome;
    moved = true;
  }
  size_t taken = 0;
  if (!has_unsent() && !data.empty()) {
    taken = std::min(data.size(), text_bytes_max_);
    sealer_.Seal(data.first(taken), record_.data());
    sent_ = 0;
    sealed_ = taken + kRecordOverheadBytes;
    const Outcome outcome = send_on();
    if (outcome.result == Result::kFailed) return outcome;
    moved = true;
  }
  return {.result = moved ? Result::kMoved : Result::kBlocked, .bytes = taken};
}

Stream::Outcome SealedStream::Receive(absl::Span<std::byte> place) {
  std::optional<size_t> taken = reader_.Take(place);
  if (taken == 0u) {
    const Outcome outcome = ReceiveSome(reader_.Room());
    if (outcome.result != Result::kMoved) return outcome;
    reader_.Add(outcome.bytes);
    taken = reader_.Take(place);
  }
  if (!taken.has_value()) {
    return {
        .result = Result::kForged,
        .reason =
            "what came from it is not of this job or was changed under way"};
  }
  return {.result = Result::kMoved, .bytes = *taken};
}

}  // namespace slackline
