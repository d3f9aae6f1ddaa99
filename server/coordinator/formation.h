// Formation: from FORMING to RUNNING: whether all members of the config have
// joined and can connect with each other, when that is given up, and whether
// the job can begin with what they bring: from a checkpoint, with delays that
// are given. Where it begins is said by the view's workers, at whose clocks.
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/view.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/job_delays.h"
#include "server/coordinator/link_check.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class Formation : public CoordinatorPart {
 public:
  // The fields are as in CoordinatorCore::Options.
  struct Options {
    int workers = 1;
    absl::Duration lease = absl::Seconds(5);
    absl::Duration start_timeout = absl::Seconds(60);
    bool try_links = false;
    bool servers_need_each_other = true;  // As in LinkCheck::Options.
    std::shared_ptr<const checkpoint::Manifest> resume = nullptr;
    std::string resume_folder = {};
  };
  // All of them outlive it.
  Formation(const Options& options, JobDelays* delays, Membership* members,
            ViewEditor* editor);

  // This coordinator begins: its time to form the job counts from here.
  void Start(absl::Time awake_now) { started_ = awake_now; }

  // What the member is to try to connect with, and what it says of that.
  void PutRound(const Member& member, wire::HeartbeatReply* reply) const {
    links_.PutRound(member, reply);
  }
  void OnLinksTried(const Member& member, const wire::LinksTried& tried) {
    links_.OnReport(member, tried);
  }
  // Those who are left try anew once all have joined.
  void OnGone(const GoneMember&, CoordinatorEffects*) override {
    links_.Stop();
  }

  // The job forms, all have joined, and, where that is asked for, all can
  // connect with each other: it is to begin now. Asks members to try if nobody
  // has asked them yet.
  bool IsComplete(absl::Time now, CoordinatorEffects* effects);

  // The tables that the members bring. Of a job that goes on from a checkpoint
  // their values are there.
  std::vector<wire::Table> Tables() const;
  // The view has its tables, members and phases, and its length: puts the
  // workers where they begin. False if the job cannot begin like this: then it
  // has ended.
  bool PlaceWorkers(CoordinatorEffects* effects);

  WakeUp NextWakeUp() const override;
  // Ends the job if it forms and it is too late for that. Says which
  // connections are left, once it has taken long.
  void OnTime(const Moment& moment, CoordinatorEffects* effects) override;
  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;

 private:
  // When a job that forms is given up, in awake time.
  absl::Time GivesUpAt() const;
  // It is too late for it to form: says who is missing.
  wire::JobEnd NotFormed(absl::Time awake_now) const;
  // All have joined. Whether all can connect with each other, too.
  bool LinksAreThere(absl::Time awake_now, CoordinatorEffects* effects);
  // Places the workers of a job that goes on from a checkpoint, or ends it if
  // it cannot.
  void GoOnFromCheckpoint(CoordinatorEffects* effects);
  // Empty, or why the tables and steps of this job do not fit its delays, if
  // they are given. Says what it takes to keep to them.
  std::string WhyDelaysUnfit(CoordinatorEffects* effects) const;

  const Options options_;
  JobDelays* const delays_;
  Membership* const members_;
  ViewEditor* const editor_;
  LinkCheck links_;
  absl::Time started_;  // In awake time.
};

}  // namespace slackline
