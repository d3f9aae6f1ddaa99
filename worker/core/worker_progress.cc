#include "worker/core/worker_progress.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/conclusion.h"

namespace slackline {

using State = WorkerStage;
using Need = WorkerNeed;

bool WaitsForOthers(WorkerStage state, WorkerNeed need) {
  if (need == Need::kState) return true;
  switch (state) {
    case State::kJoinPull:
    case State::kPulling:
    case State::kAwaitingExamples:
    case State::kWaiting:
    case State::kPushed:
    case State::kAskingState:
    case State::kGiving:
    case State::kDraining:
    case State::kFinalPull:
    case State::kReported:
      return true;
    case State::kComputing:
      return need != Need::kNothing;
    default:
      return false;
  }
}

std::string WaitingText(const WorkerWhereabouts& at, absl::Time now) {
  const auto with_client = [&](const std::string& what) {
    return at.client != nullptr
               ? absl::StrCat(what, ": ", at.client->WaitingFor(now).text)
               : what;
  };
  if (at.need == Need::kState)
    return with_client("the model or the optimizer's state");
  switch (at.state) {
    case State::kWaiting:
      return at.waiting_for;
    case State::kAwaitingExamples:
      return "examples: other workers have the last ones";
    case State::kPushed:
    case State::kDraining:
      return with_client("pushes to be acknowledged");
    case State::kComputing:
      return with_client(at.need == Need::kRoom ? "room to push"
                                                : "parameters");
    case State::kReported:
      return "the coordinator to end the job";
    case State::kDone:
      return "the other workers to finish";
    default:
      return with_client("parameters");
  }
}

run::WorkerProgress ProgressOf(const WorkerWhereabouts& at, absl::Time now) {
  using P = run::WorkerProgress;
  P progress;
  progress.set_clock(std::max<Clock>(at.clock, 0));
  progress.set_for_ms(absl::ToInt64Milliseconds(now - at.progress_at));
  const auto is = [&](P::Activity activity, std::string what) {
    progress.set_activity(activity);
    progress.set_what(std::move(what));
  };
  const auto waits = [&] {
    using Kind = ClientWaiting::Kind;
    const ClientWaiting waiting = at.client->WaitingFor(now);
    is(waiting.kind == Kind::kWorkers ? P::WAITING_FOR_WORKERS
                                      : P::WAITING_FOR_SERVER,
       absl::StrCat("waiting for ", WaitingText(at, now)));
    if (waiting.rank.has_value())
      progress.set_rank(static_cast<int32_t>(*waiting.rank));
    if (waiting.server.has_value()) progress.set_server(*waiting.server);
    // That its shards move is no progress of those it waits for.
    if (waiting.kind != Kind::kServer) return;
    progress.set_for_ms(std::min(
        progress.for_ms(), absl::ToInt64Milliseconds(waiting.since_progress)));
  };
  if (at.need == Need::kState) {
    waits();
    return progress;
  }
  switch (at.state) {
    case State::kJoining:
      is(P::ACTIVITY_UNSPECIFIED, "joining");
      break;
    case State::kInitializing:
      is(P::WORKING, "making the initial values");
      break;
    case State::kComputing:
      if (at.need != Need::kNothing) {
        waits();
      } else {
        is(P::WORKING, absl::StrCat("computing step ", at.clock));
      }
      break;
    case State::kReducing:
      if (at.waits_for_sum) {
        is(P::WAITING_FOR_WORKERS,
           absl::StrCat("waiting for the others' gradients of step ",
                        at.clock));
      } else {
        is(P::WORKING, absl::StrCat("computing step ", at.clock));
      }
      break;
    case State::kConnecting:
    case State::kCatchingUp:
      is(P::WAITING_FOR_WORKERS, "connecting to the other workers");
      break;
    case State::kTakingState:
      is(P::WORKING, "taking the state from the servers");
      break;
    case State::kReadingState:
      is(P::WORKING, "giving the state to the servers");
      break;
    case State::kWaiting:
    case State::kAwaitingExamples:
      is(P::WAITING_FOR_WORKERS,
         absl::StrCat("waiting for ", WaitingText(at, now)));
      break;
    case State::kTrained:
      is(P::WORKING, "past its last step, and its program is at work");
      break;
    case State::kDone:
      if (AllAreDone(*at.view)) {
        const wire::WorkerMember* const chief = ChiefOf(*at.view);
        if (chief != nullptr) progress.set_rank(chief->rank());
        is(P::WAITING_FOR_WORKERS,
           "waiting for the chief to evaluate and write the model");
      } else {
        is(P::WAITING_FOR_WORKERS, "waiting for the other workers to finish");
      }
      break;
    case State::kConcluding:
      is(P::WORKING, "evaluating and writing the final model");
      break;
    case State::kSaving:
      is(P::WORKING, absl::StrCat("trying again to write the final model: ",
                                  at.save_failure));
      break;
    case State::kReported:
    case State::kLeaving:
    case State::kEnded:
      is(P::WAITING_FOR_COORDINATOR, "leaving");
      break;
    default:
      waits();
  }
  return progress;
}

void AddTraffic(const ClientCore& client, run::WorkerStats* stats) {
  stats->set_bytes_pushed(client.bytes_pushed());
  stats->set_bytes_resent(client.bytes_resent());
  stats->set_bytes_pulled(client.bytes_pulled());
  stats->set_retries(client.retries());
  for (const auto& [server, answers] : client.answers()) {
    run::ServerAnswers& told = *stats->add_answers();
    told.set_server(server);
    told.set_messages(answers.messages);
    told.set_seconds(absl::ToDoubleSeconds(answers.time));
  }
}

}  // namespace slackline
