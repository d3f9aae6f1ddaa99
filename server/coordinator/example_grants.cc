#include "server/coordinator/example_grants.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace slackline {

std::optional<wire::Elastic> ExampleGrants::Elastic() const {
  const wire::JoinRequest& model = members_->model();
  if (!model.has_elastic()) return std::nullopt;
  return model.elastic();
}

bool ExampleGrants::Takes(const wire::Call& call) {
  return call.has_next_examples() || call.has_has_examples();
}

void ExampleGrants::OnCall(const Member& worker, const wire::Call& call,
                           CoordinatorEffects* effects) {
  const GrantBook::Caller caller{.peer = worker.peer,
                                 .call_id = call.call_id(),
                                 .incarnation = worker.incarnation};
  std::vector<GrantBook::Answer> answers;
  if (call.has_next_examples()) {
    book_.Ask(caller, call.next_examples(), &answers);
  } else {
    book_.OnHasExamples(caller, call.has_examples().clock(), &answers);
  }
  Send(std::move(answers), effects);
}

void ExampleGrants::OnGone(const GoneMember& gone,
                           CoordinatorEffects* effects) {
  std::vector<GrantBook::Answer> answers;
  book_.Forget(gone.member.incarnation, &answers);
  Send(std::move(answers), effects);
}

bool ExampleGrants::Advance(const Moment&, CoordinatorEffects* effects) {
  if (!editor_->running()) return false;
  const bool ended = EndIfAllDone(effects);
  FollowEnd(effects);
  return ended;
}

bool ExampleGrants::EndIfAllDone(CoordinatorEffects* effects) {
  const wire::View& view = editor_->view();
  if (!book_.used_up() || view.end_clock() > 0) return false;
  std::vector<Incarnation> workers;
  for (const auto& [rank, worker] : members_->workers())
    workers.push_back(worker->incarnation);
  const std::optional<Clock> end = book_.EndOf(workers);
  if (!end.has_value()) return false;
  // Some of them may be on their way into a phase that begins there.
  const int next = view.entered() + 1;
  if (next < view.phase_size() && view.phase(next).from() <= *end) return false;
  std::vector<GrantBook::Answer> none;  // All are at this clock.
  book_.EndAt(*end, &none);
  book_.Ended();
  effects->log.push_back(absl::StrCat("all ", book_.examples_done(),
                                      " examples are done, after ", *end,
                                      " steps"));
  editor_->SetEndClock(*end);
  return true;
}

void ExampleGrants::FollowEnd(CoordinatorEffects* effects) {
  const Clock end = editor_->view().end_clock();
  if (end == 0) return;
  std::vector<GrantBook::Answer> answers;
  book_.EndAt(end, &answers);
  Send(std::move(answers), effects);
}

void ExampleGrants::Keep(absl::Time, KeptState* kept) { book_.Keep(kept); }

absl::Status ExampleGrants::Load(const StateReader& reader, const Moment&,
                                 CoordinatorEffects*) {
  if (editor_->view().phase_size() == 0) return absl::OkStatus();
  return book_.Load(editor_->view().elastic() ? Elastic() : std::nullopt,
                    reader, [&](Incarnation incarnation) -> const PeerId* {
                      const Member* const member = members_->Find(incarnation);
                      return member == nullptr ? nullptr : &member->peer;
                    });
}

void ExampleGrants::PutSummary(run::Summary* summary) const {
  summary->set_examples_done(book_.examples_done());
  summary->set_examples_given_again(book_.examples_given_again());
}

void ExampleGrants::Send(std::vector<GrantBook::Answer> answers,
                         CoordinatorEffects* effects) {
  for (GrantBook::Answer& answer : answers) {
    Outgoing out =
        AnswerTo(answer.to.peer, answer.to.call_id, answer.code, answer.error);
    if (answer.code == wire::OK) {
      *out.message.header.mutable_call_reply()->mutable_granted() =
          std::move(answer.granted);
    }
    effects->sends.push_back(std::move(out));
  }
}

}  // namespace slackline
