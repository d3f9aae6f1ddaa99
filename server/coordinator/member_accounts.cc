#include "server/coordinator/member_accounts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/status.h"

namespace slackline {

void MemberAccounts::OnJoined(const Member& member,
                              CoordinatorEffects* effects) {
  std::string differs = programs_.OnJoin(member.join);
  if (!differs.empty()) effects->warnings.push_back(std::move(differs));
}

void MemberAccounts::OnGone(const GoneMember& gone, CoordinatorEffects*) {
  if (!editor_->running()) return;
  const Member& member = gone.member;
  if (member.worker_role()) {
    totals_.AddGone(member.index(), member.worker);
    return totals_.AddLost(LostText(gone));
  }
  // Whoever takes the shards over counts the gradients that they hold, as
  // accepted and as held.
  run::ServerStats counted = member.server;
  counted.set_pushes(counted.pushes() -
                     std::min(counted.pushes(), counted.held()));
  counted.clear_held();
  totals_.AddGone(counted);
}

int64_t MemberAccounts::Examples() const {
  int64_t examples = totals_.examples_of_gone();
  for (const auto& [rank, worker] : members_->workers())
    examples += worker->worker.examples();
  return examples;
}

std::vector<const run::ServerStats*> MemberAccounts::Servers() const {
  std::vector<const run::ServerStats*> servers;
  for (const auto& [index, server] : members_->servers())
    servers.push_back(&server->server);
  return servers;
}

void MemberAccounts::PutStatus(const StatusQuestion&,
                               wire::StatusReply* status) const {
  *status->mutable_refused() = totals_.Refused(Servers());
}

void MemberAccounts::PutSummary(run::Summary* summary) const {
  programs_.PutSummary(summary);
  std::vector<RunTotals::Worker> workers;
  for (const auto& [rank, worker] : members_->workers())
    workers.push_back({.rank = rank, .stats = &worker->worker});
  totals_.Put(workers, Servers(), summary);
}

void MemberAccounts::Keep(absl::Time, KeptState* kept) {
  if (totals_.TakeNews()) kept->Put("totals", totals_.Keep());
  if (programs_.TakeNews()) kept->Put("programs", programs_.Keep());
}

absl::Status MemberAccounts::Load(const StateReader& reader, const Moment&,
                                  CoordinatorEffects*) {
  coordinator::TotalsState totals;
  SL_RETURN_IF_ERROR(reader.Read("totals", &totals));
  totals_.Load(totals);
  coordinator::ProgramsState programs;
  SL_RETURN_IF_ERROR(reader.Read("programs", &programs));
  programs_.Load(programs);
  return absl::OkStatus();
}

}  // namespace slackline
