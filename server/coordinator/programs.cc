#include "server/coordinator/programs.h"

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

std::string TextOf(const wire::Build& build) {
  return absl::StrCat(build.program(), " ", build.version(), " (",
                      build.commit(), ")");
}

}  // namespace

std::string Programs::OnJoin(const wire::JoinRequest& join) {
  wire::Build build = join.build();
  build.DiscardUnknownFields();
  const std::string key = build.SerializeAsString();
  const auto found = kinds_.find(key);
  if (found == kinds_.end() && kinds_.size() >= kKindsMax) return "";
  news_ = true;
  Members& members = kinds_[key];
  const bool is_new = found == kinds_.end();
  members.build = build;
  const bool is_worker = join.role() == wire::JoinRequest::WORKER;
  (is_worker ? members.workers : members.servers).insert(join.index());
  if (!is_new ||
      (build.version() == own_.version() && build.commit() == own_.commit())) {
    return "";
  }
  return absl::StrCat(
      is_worker ? "worker " : "server ", join.index(), " is ", TextOf(build),
      ", the coordinator ", TextOf(own_),
      "; they understand each other, but may not compute the same: install the "
      "same build on all hosts");
}

coordinator::ProgramsState Programs::Keep() const {
  coordinator::ProgramsState state;
  for (const auto& [key, members] : kinds_) {
    coordinator::ProgramsState::Kind& kind = *state.add_kind();
    *kind.mutable_build() = members.build;
    kind.mutable_server()->Add(members.servers.begin(), members.servers.end());
    kind.mutable_worker()->Add(members.workers.begin(), members.workers.end());
  }
  return state;
}

void Programs::Load(const coordinator::ProgramsState& state) {
  for (const coordinator::ProgramsState::Kind& kind : state.kind()) {
    Members& members = kinds_[kind.build().SerializeAsString()];
    members.build = kind.build();
    members.servers.insert(kind.server().begin(), kind.server().end());
    members.workers.insert(kind.worker().begin(), kind.worker().end());
  }
}

void Programs::PutSummary(run::Summary* summary) const {
  for (const bool servers : {true, false}) {
    for (const auto& [key, members] : kinds_) {
      if (servers != !members.servers.empty()) continue;
      run::Program& program = *summary->add_program();
      program.set_program(members.build.program());
      program.set_version(members.build.version());
      program.set_commit(members.build.commit());
      program.set_build_id(members.build.build_id());
      program.set_servers(static_cast<int32_t>(members.servers.size()));
      program.set_workers(static_cast<int32_t>(members.workers.size()));
    }
  }
}

}  // namespace slackline
