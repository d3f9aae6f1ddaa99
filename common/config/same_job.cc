#include "common/config/same_job.h"

#include "absl/strings/str_cat.h"
#include "common/block/config_difference.h"
#include "google/protobuf/util/message_differencer.h"

namespace slackline {
namespace {

using google::protobuf::RepeatedPtrField;
using google::protobuf::util::MessageDifferencer;

void ForgetPlace(config::ServerGroup* group) {
  group->clear_host();
  group->clear_listen();
  group->clear_port();
  group->clear_cpus();
  group->clear_memory_mb();
}

void ForgetPlace(config::WorkerGroup* group) {
  group->clear_host();
  group->clear_listen();
  group->clear_port();
  group->clear_gpu();
  group->clear_cpus();
  group->clear_memory_mb();
}

// Neighbours that differ in their places alone become one group.
template <typename Group>
void ForgetPlaces(RepeatedPtrField<Group>* groups) {
  RepeatedPtrField<Group> merged;
  for (const Group& group : *groups) {
    Group next = group;
    ForgetPlace(&next);
    if (!merged.empty()) {
      Group& last = *merged.rbegin();
      Group same = next;
      same.set_count(last.count());
      if (MessageDifferencer::Equals(same, last)) {
        last.set_count(last.count() + next.count());
        continue;
      }
    }
    *merged.Add() = next;
  }
  groups->Swap(&merged);
}

}  // namespace

config::ClusterConfig WithoutPlaces(const config::ClusterConfig& config) {
  config::ClusterConfig left = config;
  ForgetPlaces(left.mutable_server());
  ForgetPlaces(left.mutable_worker());
  if (left.has_coordinator()) {
    left.mutable_coordinator()->clear_host();
    left.mutable_coordinator()->clear_port();
    left.mutable_coordinator()->clear_listen();
    if (left.coordinator().has_etcd()) {
      config::Etcd& etcd = *left.mutable_coordinator()->mutable_etcd();
      etcd.clear_endpoint();
      etcd.clear_ca();
      etcd.clear_certificate();
      etcd.clear_private_key();
      etcd.clear_user();
      etcd.clear_password_file();
    }
  }
  left.clear_launch();
  left.clear_health();
  left.clear_track();
  // It allows hosts that are not this machine.
  left.clear_insecure();
  return left;
}

std::string WhyOtherJob(const config::ClusterConfig& config,
                        const config::ClusterConfig& of_run) {
  if (of_run.job() != config.job()) {
    return absl::StrCat("is of job ", of_run.job(), ", and this is ",
                        config.job());
  }
  const std::string difference = FirstDifference(
      WithoutPlaces(config), WithoutPlaces(of_run), "the run's");
  if (difference.empty()) return "";
  return absl::StrCat("is of another config, or of other flags (", difference,
                      ")");
}

}  // namespace slackline
