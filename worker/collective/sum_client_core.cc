#include "worker/collective/sum_client_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace slackline {

SumClientCore::SumClientCore(const Options& options)
    : options_(options), links_(options.threads.size()) {
  SL_CHECK(!links_.empty(), "no shard thread sums");
}

absl::Span<float> SumClientCore::Piece(int32_t index) const {
  const size_t floats = options_.piece_bytes / sizeof(float);
  return data_.subspan(static_cast<size_t>(index) * floats, floats);
}

void SumClientCore::Begin(int64_t number, absl::Span<float> data,
                          absl::Time now, Effects* effects) {
  SL_CHECK(!running(), "the operation before is not over");
  number_ = number;
  data_ = data;
  const size_t floats = options_.piece_bytes / sizeof(float);
  missing_ = static_cast<int32_t>((data.size() + floats - 1) / floats);
  is_under_way_.assign(static_cast<size_t>(missing_), false);
  if (missing_ == 0) return End(absl::OkStatus(), effects);
  late_ = now + options_.timeout;
  for (int32_t piece = 0; piece < missing_; ++piece) {
    // So that buckets of one piece do not all go to the first one.
    const auto turn = static_cast<size_t>(number + piece);
    links_[turn % links_.size()].to_send.push_back(piece);
  }
  for (size_t thread = 0; thread < links_.size(); ++thread)
    SendWhatFits(thread, now, effects);
}

void SumClientCore::End(absl::Status status, Effects* effects) {
  missing_ = 0;
  data_ = {};
  is_under_way_.clear();
  late_ = absl::InfiniteFuture();
  for (Link& link : links_) {
    link.to_send.clear();
    link.bytes_in_flight = 0;
    link.in_flight = 0;
    link.send_after = absl::InfinitePast();
  }
  effects->ended = std::move(status);
}

void SumClientCore::SendWhatFits(size_t thread, absl::Time now,
                                 Effects* effects) {
  Link& link = links_[thread];
  if (link.send_after > now) return;
  link.send_after = absl::InfinitePast();
  while (!link.to_send.empty()) {
    const int32_t index = link.to_send.front();
    const absl::Span<float> piece = Piece(index);
    const size_t bytes = piece.size() * sizeof(float);
    if (link.in_flight > 0 &&
        link.bytes_in_flight + bytes > options_.window_bytes) {
      break;
    }
    Send send{.thread = thread, .message = {}};
    send.message.header.set_run(options_.run);
    wire::SumRequest& request = *send.message.header.mutable_sum_request();
    request.set_group(options_.group);
    request.set_rank(options_.rank);
    request.set_ranks(options_.ranks);
    request.set_operation(number_);
    request.set_piece(index);
    // A copy, because the system may still read it when the group has failed
    // and the caller has its buffer back.
    send.message.payloads.push_back(Payload::Copy(piece.data(), bytes));
    effects->sends.push_back(std::move(send));
    link.to_send.pop_front();
    link.bytes_in_flight += bytes;
    ++link.in_flight;
    is_under_way_[static_cast<size_t>(index)] = true;
  }
}

void SumClientCore::Return(Link& link, int32_t piece) {
  is_under_way_[static_cast<size_t>(piece)] = false;
  link.bytes_in_flight -= Piece(piece).size() * sizeof(float);
  --link.in_flight;
}

void SumClientCore::SendAgainLater(Link& link, int32_t piece, absl::Time now) {
  Return(link, piece);
  link.to_send.push_front(piece);
  link.send_after = now + options_.retry_after;
}

void SumClientCore::OnQueueFull(const Send& send, absl::Time now) {
  if (!running()) return;
  SendAgainLater(links_[send.thread], send.message.header.sum_request().piece(),
                 now);
}

absl::Status SumClientCore::OnAnswer(size_t thread, const Message& message,
                                     absl::Time now) {
  const std::string& name = options_.threads[thread];
  Link& link = links_[thread];
  if (message.header.has_error_reply()) {
    return absl::InternalError(
        absl::StrCat(name, " answers: ", message.header.error_reply().error()));
  }
  const wire::SumReply& reply = message.header.sum_reply();
  if (!message.header.has_sum_reply() || reply.group() != options_.group ||
      reply.operation() != number_) {
    return absl::OkStatus();  // Of what has failed before.
  }
  if (!reply.refused().empty()) {
    return absl::UnavailableError(
        absl::StrCat(name, " does not sum: ", reply.refused()));
  }
  const int32_t index = reply.piece();
  const auto pieces = static_cast<int32_t>(is_under_way_.size());
  if (index < 0 || index >= pieces ||
      !is_under_way_[static_cast<size_t>(index)] ||
      static_cast<size_t>(number_ + index) % links_.size() != thread) {
    return absl::InternalError(absl::StrCat(name, " answers for piece ", index,
                                            " of ", pieces,
                                            ", of which it was not asked"));
  }
  if (reply.retry()) {
    SendAgainLater(link, index, now);
    return absl::OkStatus();
  }
  const absl::Span<float> piece = Piece(index);
  const size_t bytes = piece.size() * sizeof(float);
  if (message.payloads.size() != 1 ||
      message.payloads.front().size() != bytes) {
    return absl::InternalError(
        absl::StrCat(name, " answers with ", message.payloads.size(),
                     " payloads, one of ", bytes, " bytes is required"));
  }
  Return(link, index);
  std::memcpy(piece.data(), message.payloads.front().data(), bytes);
  --missing_;
  late_ = now + options_.timeout;
  return absl::OkStatus();
}

void SumClientCore::OnMessage(size_t thread, const Message& message,
                              absl::Time now, Effects* effects) {
  if (!running()) return;  // Of what has failed before.
  const absl::Status status = OnAnswer(thread, message, now);
  if (!status.ok() || !running()) return End(status, effects);
  SendWhatFits(thread, now, effects);
}

void SumClientCore::OnLinkState(size_t thread, LinkState state, absl::Time now,
                                Effects* effects) {
  if (state == LinkState::kConnected) return;
  absl::Time& gone_since = links_[thread].gone_since;
  gone_since = state == LinkState::kUp ? absl::InfiniteFuture()
                                       : std::min(gone_since, now);
  OnTick(now, effects);
}

void SumClientCore::OnTick(absl::Time now, Effects* effects) {
  if (!running()) return;
  for (size_t thread = 0; thread < links_.size(); ++thread) {
    const Link& link = links_[thread];
    if (link.is_open() && now >= link.gone_since + options_.gone_max) {
      return End(absl::UnavailableError(
                     absl::StrCat(options_.threads[thread],
                                  " has ended; the group must be rebuilt")),
                 effects);
    }
    SendWhatFits(thread, now, effects);
  }
  if (now < late_) return;
  End(absl::DeadlineExceededError(absl::StrCat(
          "no sum came for ", absl::ToInt64Milliseconds(options_.timeout),
          " ms from ", Silent(),
          "; a rank is stuck, or slower than the timeout allows; the group "
          "must be rebuilt")),
      effects);
}

absl::Time SumClientCore::NextWakeup() const {
  if (!running()) return absl::InfiniteFuture();
  absl::Time next = late_;
  for (const Link& link : links_) {
    if (!link.is_open()) continue;
    next = std::min(next, link.gone_since + options_.gone_max);
    // What has no room in the window waits for an answer.
    if (!link.to_send.empty() && link.send_after > absl::InfinitePast())
      next = std::min(next, link.send_after);
  }
  return next;
}

std::string SumClientCore::Silent() const {
  std::vector<std::string> names;
  for (size_t thread = 0; thread < links_.size(); ++thread) {
    if (links_[thread].is_open()) names.push_back(options_.threads[thread]);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace slackline
