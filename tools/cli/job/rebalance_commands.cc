#include "tools/cli/job/rebalance_commands.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "tools/cli/command_output.h"
#include "tools/cli/display.h"
#include "tools/cli/job/move_watch.h"
#include "tools/cli/job/plan_tables.h"
#include "tools/cli/job/shard_selection.h"
#include "tools/cli/json.h"

namespace slackline {
namespace {

constexpr absl::Duration kRebalanceLookEvery = absl::Milliseconds(100);

bool Lists(const wire::StatusReply& status, int server) {
  return std::any_of(status.server().begin(), status.server().end(),
                     [server](const run::ServerStats& stats) {
                       return stats.index() == server;
                     });
}

// Asks how the job stands until `done`, and shows `watch` meanwhile.
absl::Status Await(JobConnection* job, MoveWatch* watch,
                   const std::function<bool()>& done) {
  Display display(absl::ZeroDuration());
  while (true) {
    SL_RETURN_IF_ERROR(Annotate(
        job->Refresh(), "the moves are ordered, but how they end is unknown"));
    watch->Update(job->status());
    if (done()) return absl::OkStatus();
    const wire::View& view = job->status().view();
    if (view.state() != wire::RUNNING) {
      return absl::AbortedError(
          absl::StrCat("the job has ended (", EndText(view),
                       ") before that was done; ", watch->Line()));
    }
    display.ShowState(watch->Line());
    absl::SleepFor(kRebalanceLookEvery);
  }
}

// What was planned, what of it is done, and sentences on what will not be.
nlohmann::ordered_json PlanJson(const run::Plan& plan,
                                const std::vector<run::MoveRecord>& moved,
                                const std::vector<std::string>& abandoned) {
  nlohmann::ordered_json json = {{"plan", ToJson(plan)},
                                 {"moved", nlohmann::ordered_json::array()},
                                 {"abandoned", abandoned}};
  for (const run::MoveRecord& record : moved)
    json["moved"].push_back(ToJson(record));
  return json;
}

// What the plan has come to; Aborted if some of it was not done.
absl::Status Report(const MoveOutputOptions& output, const run::Plan& plan,
                    const MoveWatch& watch) {
  if (output.json) {
    PrintJson(PlanJson(plan, watch.moved(), watch.Abandoned()));
  } else if (plan.move_size() > 0) {
    if (!watch.moved().empty()) {
      PrintResult(absl::StrCat("\n", MovesTable(watch.moved())));
    }
    PrintResult(absl::StrCat(MovesTotal(watch.moved()), "\n"));
    if (watch.Unrecorded() > 0) {
      PrintResult(absl::StrCat("and ", watch.Unrecorded(),
                               " more, of which the coordinator no longer "
                               "knows the pause\n"));
    }
  }
  const std::vector<std::string> abandoned = watch.Abandoned();
  if (abandoned.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrJoin(abandoned, "\n"));
}

// Shows the plan, and if wanted waits for its end. `server`: this server has to
// leave, too; -1 for none.
absl::Status Follow(const MoveOutputOptions& output, JobConnection* job,
                    const run::Plan& plan, int server = -1) {
  if (!output.json) PrintResult(PlanText(plan));
  MoveWatch watch(plan, job->status());
  const bool anything = plan.move_size() > 0 || server >= 0;
  if (!output.wait || !anything) {
    if (output.json) PrintJson(PlanJson(plan, {}, {}));
    return absl::OkStatus();
  }
  SL_RETURN_IF_ERROR(Await(job, &watch, [&] {
    return server < 0 ? watch.Done() : !Lists(job->status(), server);
  }));
  return Report(output, plan, watch);
}

absl::Status Rebalance(const RebalanceOptions& options) {
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  SL_ASSIGN_OR_RETURN(const run::Plan plan,
                      job.client().Rebalance(options.dry_run, job.wait_max()));
  MoveOutputOptions output = options.output;
  if (options.dry_run) output.wait = false;
  return Follow(output, &job, plan);
}

absl::Status Move(const MoveOptions& options) {
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  SL_ASSIGN_OR_RETURN(const std::shared_ptr<const View> view,
                      View::Create(job.status().view()));
  SL_ASSIGN_OR_RETURN(const std::vector<int32_t> shards,
                      SelectShards(*view, options.shards));
  SL_ASSIGN_OR_RETURN(const Owner target, SelectTarget(*view, options.to));
  wire::MoveShards move;
  move.mutable_shard()->Add(shards.begin(), shards.end());
  move.set_server(target.server);
  move.set_thread(target.thread);
  SL_ASSIGN_OR_RETURN(const run::Plan plan,
                      job.client().MoveShards(move, job.wait_max()));
  return Follow(options.output, &job, plan);
}

absl::Status Drain(const DrainOptions& options) {
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  SL_ASSIGN_OR_RETURN(const std::shared_ptr<const View> view,
                      View::Create(job.status().view()));
  SL_RETURN_IF_ERROR(CheckServer(*view, options.server));
  SL_ASSIGN_OR_RETURN(const run::Plan plan,
                      job.client().Drain(options.server, job.wait_max()));
  SL_RETURN_IF_ERROR(Follow(options.output, &job, plan, options.server));
  if (!options.output.json) {
    PrintResult(absl::StrCat(
        "server ", options.server,
        options.output.wait ? " has given its shards away and left the job\n"
                            : " leaves when it has given its shards away\n"));
  }
  return absl::OkStatus();
}

int ExitCode(absl::string_view command, const absl::Status& status) {
  return status.ok() ? kExitDone : Fail(command, status);
}

}  // namespace

int RebalanceShards(const RebalanceOptions& options) {
  return ExitCode("rebalance", Rebalance(options));
}

int MoveShards(const MoveOptions& options) {
  return ExitCode("move", Move(options));
}

int DrainServer(const DrainOptions& options) {
  return ExitCode("drain", Drain(options));
}

}  // namespace slackline
