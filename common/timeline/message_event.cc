#include "common/timeline/message_event.h"

#include "common/timeline/event_names.h"

namespace slackline {
namespace {

// Of a push the request's number, of a pull its own; never 0. Flows of two
// messages are the same with the odds of two random numbers.
enum class FlowKind : uint64_t { kPush = 1, kPull = 2 };

uint64_t FlowOf(FlowKind kind, Incarnation worker, uint64_t id) {
  auto flow = static_cast<uint64_t>(kind);
  // The finalizer of MurmurHash3, for each part.
  for (const uint64_t part : {worker, id}) {
    flow = (flow ^ part) * 0x9e3779b97f4a7c15;
    flow = (flow ^ (flow >> 33)) * 0xff51afd7ed558ccd;
    flow = (flow ^ (flow >> 33)) * 0xc4ceb9fe1a85ec53;
    flow ^= flow >> 33;
  }
  return flow == 0 ? 1 : flow;
}

struct Meaning {
  const char* name = timeline_names::kMessage;
  uint64_t flow = 0;
};

Meaning MeaningOf(const wire::Header& header, bool by_worker,
                  Incarnation worker) {
  namespace names = timeline_names;
  switch (header.body_case()) {
    case wire::Header::kPushRequest:
      return {
          by_worker ? names::kPush : names::kApply,
          FlowOf(FlowKind::kPush, worker, header.push_request().request_id())};
    case wire::Header::kPushReply:
      return {
          by_worker ? names::kAcknowledged : names::kAcknowledge,
          FlowOf(FlowKind::kPush, worker, header.push_reply().request_id())};
    // What shares a message goes by the first of it.
    case wire::Header::kPullRequest:
      if (header.pull_request().pull().empty()) return {};
      return {
          by_worker ? names::kPull : names::kLookUp,
          FlowOf(FlowKind::kPull, worker, header.pull_request().pull(0).id())};
    case wire::Header::kPullReply:
      if (header.pull_reply().answer().empty()) return {};
      return {by_worker ? names::kPulled : names::kAnswer,
              FlowOf(FlowKind::kPull, worker,
                     header.pull_reply().answer(0).pull())};
    case wire::Header::kHandOver:
    case wire::Header::kHandOverReply:
      return {names::kHandOver, 0};
    case wire::Header::kSumRequest:
    case wire::Header::kSumReply:
      return {names::kSum, 0};
    default:
      return {};
  }
}

}  // namespace

TimelineEvent EventOf(const Message& message, MessageEnd end,
                      Incarnation worker, absl::Time begun, absl::Time until) {
  const Meaning meaning =
      MeaningOf(message.header, end == MessageEnd::kWorker, worker);
  int64_t bytes = 0;
  for (const Payload& payload : message.payloads)
    bytes += static_cast<int64_t>(payload.size());
  return {.name = meaning.name,
          .begun = begun,
          .until = until,
          .flow = worker == 0 ? 0 : meaning.flow,
          .number = bytes};
}

}  // namespace slackline
