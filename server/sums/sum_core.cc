#include "server/sums/sum_core.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// At any alignment.
void AddFloats(const std::byte* in, size_t count, float* sum) {
  for (size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, in + i * sizeof(value), sizeof(value));
    sum[i] += value;
  }
}

}  // namespace

void SumCore::OnView(std::shared_ptr<const View> view) {
  if (view_ == nullptr || view->proto().group() != view_->proto().group()) {
    members_.clear();
    open_.clear();
    ranks_ = 0;
  }
  view_ = std::move(view);
}

size_t SumCore::waiting_bytes() const {
  size_t bytes = 0;
  for (const auto& [rank, member] : members_) bytes += member.waiting_bytes;
  return bytes;
}

Outgoing SumCore::Reply(const PeerId& to,
                        const wire::SumRequest& request) const {
  Outgoing outgoing{.to = to, .message = {}};
  wire::Header& header = outgoing.message.header;
  if (view_ != nullptr) {
    header.set_view_number(view_->number());
    header.set_run(view_->proto().run());
  }
  wire::SumReply& reply = *header.mutable_sum_reply();
  reply.set_group(request.group());
  reply.set_operation(request.operation());
  reply.set_piece(request.piece());
  return outgoing;
}

std::string SumCore::Fault(const PeerId& from, const wire::SumRequest& request,
                           const Message& message) const {
  const wire::View& view = view_->proto();
  if (message.header.run() != 0 && message.header.run() != view.run())
    return "the sum is of another run";
  if (request.group() < view.group())
    return absl::StrCat("group ", request.group(), " is over");
  if (from.kind != PeerId::Kind::kSum ||
      view_->FindWorker(Rank{from.index}, from.instance) == nullptr) {
    return absl::StrCat(from.ToString(), " is no worker of this job");
  }
  const int workers = view_->workers().size();
  if (request.ranks() < 2 || request.ranks() > workers ||
      (ranks_ != 0 && request.ranks() != ranks_)) {
    return absl::StrCat("a sum of ", request.ranks(), " ranks in a group of ",
                        ranks_ != 0 ? ranks_ : workers);
  }
  if (request.rank() < 0 || request.rank() >= request.ranks() ||
      request.operation() < 0 || request.piece() < 0) {
    return absl::StrCat("rank ", request.rank(), ", operation ",
                        request.operation(), ", piece ", request.piece());
  }
  if (message.payloads.size() != 1)
    return absl::StrCat(message.payloads.size(), " payloads, 1 is required");
  const size_t bytes = message.payloads.front().size();
  if (bytes == 0 || bytes % sizeof(float) != 0 || bytes > kSumPieceBytesMax) {
    return absl::StrCat("a part of ", bytes,
                        " bytes; a multiple of 4, at most ", kSumPieceBytesMax,
                        ", is required");
  }
  const auto member = members_.find(request.rank());
  if (member != members_.end()) {
    if (member->second.peer != from) {
      return absl::StrCat("rank ", request.rank(), " is ",
                          member->second.peer.ToString(), ", not ",
                          from.ToString());
    }
    if (member->second.waiting_bytes + bytes > options_.waiting_bytes_max ||
        member->second.waiting_parts >= options_.waiting_parts_max) {
      return absl::StrCat("rank ", request.rank(), " has ",
                          member->second.waiting_parts, " parts of ",
                          member->second.waiting_bytes,
                          " bytes here that wait for the other ranks; at most ",
                          options_.waiting_parts_max, " parts of ",
                          options_.waiting_bytes_max, " bytes are kept");
    }
  }
  const auto sum = open_.find({request.operation(), request.piece()});
  if (sum == open_.end()) return "";
  if (sum->second.bytes != bytes) {
    return absl::StrCat("a part of ", bytes,
                        " bytes, those of other ranks have ",
                        sum->second.bytes);
  }
  if (!sum->second.parts[static_cast<size_t>(request.rank())].empty())
    return absl::StrCat("a second part of rank ", request.rank());
  return "";
}

Payload SumCore::Add(const Sum& sum) const {
  Payload result = options_.memory == nullptr
                       ? Payload::Allocate(sum.bytes)
                       : options_.memory->Allocate(sum.bytes);
  auto* const floats = reinterpret_cast<float*>(result.MutableData());
  std::memcpy(floats, sum.parts.front().data(), sum.bytes);
  for (size_t rank = 1; rank < sum.parts.size(); ++rank)
    AddFloats(sum.parts[rank].data(), sum.bytes / sizeof(float), floats);
  return result;
}

void SumCore::OnMessage(const PeerId& from, const Message& message,
                        Effects* effects) {
  const wire::SumRequest& request = message.header.sum_request();
  if (view_ == nullptr || view_->proto().state() != wire::RUNNING ||
      request.group() > view_->proto().group()) {
    Outgoing retry = Reply(from, request);
    retry.message.header.mutable_sum_reply()->set_retry(true);
    effects->sends.push_back(std::move(retry));
    return;
  }
  if (std::string fault = Fault(from, request, message); !fault.empty()) {
    Outgoing refusal = Reply(from, request);
    refusal.message.header.mutable_sum_reply()->set_refused(std::move(fault));
    effects->sends.push_back(std::move(refusal));
    return;
  }
  ranks_ = request.ranks();
  Member& member = members_[request.rank()];
  member.peer = from;
  Sum& sum = open_[{request.operation(), request.piece()}];
  if (sum.parts.empty()) {
    sum.bytes = message.payloads.front().size();
    sum.parts.resize(static_cast<size_t>(ranks_));
    sum.missing = ranks_;
  }
  sum.parts[static_cast<size_t>(request.rank())] = message.payloads.front();
  member.waiting_bytes += sum.bytes;
  ++member.waiting_parts;
  if (--sum.missing > 0) return;
  const Payload result = Add(sum);
  for (auto& [rank, each] : members_) {
    each.waiting_bytes -= sum.bytes;
    --each.waiting_parts;
    Outgoing reply = Reply(each.peer, request);
    reply.message.payloads.push_back(result);
    effects->sends.push_back(std::move(reply));
  }
  open_.erase({request.operation(), request.piece()});
  ++sums_;
}

}  // namespace slackline
