#include "common/keys/authority.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

using Body = wire::Header::BodyCase;

// What a user may order a job to do.
bool IsOrder(wire::Call::KindCase kind) {
  switch (kind) {
    case wire::Call::kStop:
    case wire::Call::kSuspend:
    case wire::Call::kFinish:
    case wire::Call::kRebalance:
    case wire::Call::kMoveShards:
    case wire::Call::kDrain:
    case wire::Call::kSetMode:
    case wire::Call::kCheckpoint:
      return true;
    default:
      return false;
  }
}

// What a user may ask of a job that it is not to change. To record a timeline
// costs all members time and memory.
bool Looks(const wire::Call& call) {
  return call.has_status() ||
         (call.has_inspect() && !call.inspect().has_timeline());
}

bool IsOfWorker(const wire::Call& call) {
  switch (call.kind_case()) {
    case wire::Call::kGather:
    case wire::Call::kStorePut:
    case wire::Call::kStoreGet:
    case wire::Call::kLeave:
    case wire::Call::kStatus:
    case wire::Call::kStepLimit:
    case wire::Call::kArrive:
    case wire::Call::kEntered:
    case wire::Call::kRegroup:
    case wire::Call::kNextExamples:
    case wire::Call::kCutPart:
    case wire::Call::kInspected:
    case wire::Call::kGoesOn:
    case wire::Call::kHasExamples:
      return true;
    case wire::Call::kCannotJoin:
      return call.cannot_join().role() == wire::JoinRequest::WORKER;
    case wire::Call::kStop:
    case wire::Call::kSuspend:
      // A member's: its training has diverged, or its time is over.
      return call.incarnation() != 0;
    default:
      return false;
  }
}

std::string WhyNotCall(Role role, const wire::Call& call) {
  const wire::Call::KindCase kind = call.kind_case();
  bool may = false;
  switch (role) {
    case Role::kServer:
      may = true;
      break;
    case Role::kWorker:
      may = IsOfWorker(call);
      break;
    case Role::kOperator:
      may = Looks(call) || call.has_inspect() || IsOrder(kind);
      break;
    case Role::kReader:
      may = Looks(call);
      break;
  }
  if (may) return "";
  const google::protobuf::FieldDescriptor* const field =
      wire::Call::descriptor()->FindFieldByNumber(kind);
  return absl::StrCat("may not call '",
                      field == nullptr ? "nothing" : field->name(), "'");
}

// The worker for which the message speaks by its text, whoever sends it.
std::optional<int32_t> WorkerIn(const wire::Header& header) {
  if (header.has_join_request()) return header.join_request().index();
  const wire::Call& call = header.call();
  if (call.has_cannot_join()) return call.cannot_join().index();
  // A worker that has not joined yet says its rank; a member has that of its
  // incarnation.
  if (call.has_gather() && call.incarnation() == 0) return call.gather().rank();
  return std::nullopt;
}

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
    case Role::kOperator:
      return "operator";
    case Role::kReader:
      return "reader";
  }
  return "";
}

std::string KeyHolder::ToString() const {
  if (rank.has_value())
    return absl::StrCat("worker ", static_cast<int32_t>(*rank));
  return absl::StrCat(role == Role::kOperator ? "an " : "a ", RoleName(role));
}

bool MayBe(const KeyHolder& holder, const PeerId& peer) {
  if (holder.rank.has_value() && Rank{peer.index} != *holder.rank) return false;
  switch (peer.kind) {
    case PeerId::Kind::kObserver:
      return true;
    case PeerId::Kind::kWorker:
    case PeerId::Kind::kSum:
      return holder.role == Role::kWorker;
    case PeerId::Kind::kServer:
    case PeerId::Kind::kCoordinator:
    case PeerId::Kind::kShardThread:
      return holder.role == Role::kServer;
  }
  return false;
}

std::string WhyNotSay(const KeyHolder& holder, const wire::Header& header) {
  const Role role = holder.role;
  const std::optional<int32_t> worker = WorkerIn(header);
  if (holder.rank.has_value() && worker.has_value() &&
      Rank{*worker} != *holder.rank) {
    return absl::StrCat("may not speak for worker ", *worker);
  }
  const Body body = header.body_case();
  bool may = false;
  switch (body) {
    case Body::kPushRequest:
    case Body::kPullRequest:
    case Body::kProbeRequest:
    case Body::kSumRequest:
      may = role == Role::kWorker;
      break;
    case Body::kHandOver:
    case Body::kHandOverReply:
      may = role == Role::kServer;
      break;
    case Body::kJoinRequest:
      may = role == (header.join_request().role() == wire::JoinRequest::SERVER
                         ? Role::kServer
                         : Role::kWorker);
      break;
    case Body::kHeartbeat:
      may = role == Role::kServer || role == Role::kWorker;
      break;
    case Body::kCall:
      return WhyNotCall(role, header.call());
    // Answers, which come over channels, and what threads of one process say to
    // each other.
    case Body::kPushReply:
    case Body::kPullReply:
    case Body::kProbeReply:
    case Body::kSumReply:
    case Body::kErrorReply:
    case Body::kStatsRequest:
    case Body::kStatsReply:
    case Body::kView:
    case Body::kViewChange:
    case Body::kJoinReply:
    case Body::kHeartbeatReply:
    case Body::kCallReply:
    case Body::kWrongRun:
    case Body::BODY_NOT_SET:
      break;
  }
  if (may) return "";
  const google::protobuf::FieldDescriptor* const field =
      wire::Header::descriptor()->FindFieldByNumber(body);
  return absl::StrCat("may not send '",
                      field == nullptr ? "nothing" : field->name(), "'");
}

}  // namespace slackline
