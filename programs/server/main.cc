// slackline_server: shard threads that hold the model, a control thread, and in
// server 0 the coordinator.
#include <cstddef>
#include <optional>

#include "common/net/process/process_transport.h"
#include "common/process/address_limit.h"
#include "common/process/cannot_join.h"
#include "common/process/logging.h"
#include "common/process/member_program.h"
#include "common/status.h"
#include "job/job_config.h"
#include "programs/server/server_program.h"

namespace slackline {
namespace {

// Server 0 has nobody to tell: the coordinator was to be in it.
absl::Status ServeOrTell(const MemberFlags& flags,
                         const config::ClusterConfig& config,
                         const TimeSource& time) {
  SL_ASSIGN_OR_RETURN(const std::optional<KeySource> keys,
                      KeysHere(config, Role::kServer, flags.key));
  // ZeroMQ ends the process when it gets no thread.
  SL_RETURN_IF_ERROR(CheckAddressesLeft(size_t{256} << 20));
  ProcessTransport transport(keys, LogOfKeys());
  ServerProgram program(flags, config, time, transport.all());
  const absl::Status served = program.Run();
  if (served.ok() || program.joins() || flags.index == 0 || flags.add)
    return served;
  TellCannotJoin(transport.network(), wire::JoinRequest::SERVER, flags.index,
                 ServerProcesses(config)[static_cast<size_t>(flags.index)].host,
                 config, served);
  return served;
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) {
  return slackline::RunMemberProgram(
      {.role = "server",
       .description =
           "Holds shards of the model and serves pushes and pulls. Server 0 "
           "also runs the\ncoordinator, so it writes metrics.jsonl, "
           "moves.jsonl, modes.jsonl and\nsummary.json. Start one process for "
           "each server of the config; 'slackline run'\ndoes it on one host.",
       .out_help = "Folder for metrics.jsonl, moves.jsonl, modes.jsonl, "
                   "summary.json and traces; none: not written",
       .data_dir_help = "",
       .may_be_added = true,
       .may_resume = true,
       .config_parts = slackline::kJobConfigParts,
       .own_names = slackline::OwnNames,
       .count =
           [](const slackline::config::ClusterConfig& config) {
             return static_cast<int>(slackline::ServerProcesses(config).size());
           },
       .run = slackline::ServeOrTell},
      argc, argv);
}
