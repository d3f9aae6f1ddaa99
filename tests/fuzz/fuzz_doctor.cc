// What `slackline doctor` makes of the answers of hosts.
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/status.h"
#include "proto/doctor.pb.h"
#include "tools/cli/doctor/diagnosis.h"
#include "tools/cli/doctor/replies.h"
#include "tools/cli/doctor/report_text.h"

namespace slackline {
namespace {

// Its own: what the job needs comes from the config.
doctor::Job TwoHosts() {
  doctor::Job job;
  job.set_job("job");
  job.set_engine("ssh");
  job.set_version("slackline 0.1.0 (abc)");
  job.set_model_bytes(1 << 20);
  job.set_checkpoint_keep(3);
  job.set_shares_checkpoints(true);
  for (const char* const name : {"n1", "n2"}) {
    doctor::HostNeed& need = *job.add_host();
    need.set_name(name);
    need.set_servers(1);
    need.set_workers(1);
    need.set_server_bytes(1 << 20);
    need.set_worker_bytes(1 << 20);
    need.set_open_files(64);
    need.set_data(true);
    need.set_writes_checkpoints(true);
    need.set_own_programs(true);
  }
  return job;
}

// As a host's answers come: those that no agent sends are left out.
void Answer(doctor::Host said, doctor::Host* host) {
  doctor::Reply replies[3];
  *replies[0].mutable_facts() = std::move(*said.mutable_facts());
  *replies[1].mutable_opened() = std::move(*said.mutable_opened());
  *replies[2].mutable_marks_seen() = std::move(*said.mutable_marks_seen());
  for (doctor::Reply& reply : replies) {
    if (CheckReply(reply).ok()) AddReply(std::move(reply), host);
  }
}

}  // namespace
}  // namespace slackline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace doctor = slackline::doctor;
  doctor::Facts said;
  if (!said.ParseFromArray(data, static_cast<int>(size))) return 0;
  doctor::Facts facts;
  *facts.mutable_job() = slackline::TwoHosts();
  doctor::Reply here;
  *here.mutable_facts() = said.here();
  if (slackline::CheckReply(here).ok()) *facts.mutable_here() = said.here();
  for (int i = 0; i < 2; ++i) {
    doctor::Host& host = *facts.add_host();
    host.set_name(facts.job().host(i).name());
    if (i < said.host_size()) slackline::Answer(said.host(i), &host);
  }
  for (doctor::Pair& pair : *said.mutable_pair()) {
    doctor::Reply reply;
    *reply.mutable_tried()->mutable_connection() = pair.connection();
    if (slackline::CheckReply(reply).ok()) *facts.add_pair() = std::move(pair);
  }
  const doctor::Report report = slackline::Diagnose(facts);
  for (const doctor::Finding& finding : report.finding()) {
    for (const char c : slackline::FindingLine(finding)) {
      SL_CHECK(c != '\n' && c != '\033' && c != '\0',
               "a finding is not one line");
    }
  }
  SL_CHECK(slackline::ReportText(report, true).size() >=
               slackline::ReportText(report, false).size() / 2,
           "a report is lost");
  return 0;
}
