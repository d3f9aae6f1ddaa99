// Places the processes of a config on hosts that are given beside it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/block/field_origins.h"
#include "proto/cluster.pb.h"

namespace slackline {

struct HostSlots {
  std::string host;
  int slots = 1;  // Workers that it takes. 0: as many as any other, if all are.
  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

// "h1:4,h2:4", as mpirun and horovodrun take it; without a number: 1. An IPv6
// address with a number stands in brackets. InvalidArgument names the part.
absl::StatusOr<std::vector<HostSlots>> ParseHosts(absl::string_view text);
// A line for each host, "h1 slots=4" or "h1"; '#' begins a comment.
// InvalidArgument names the line. A file that cannot be read is NotFound.
absl::StatusOr<std::vector<HostSlots>> ParseHostFile(absl::string_view text);
absl::StatusOr<std::vector<HostSlots>> ReadHostFile(const std::string& path);

// Servers go round the hosts, the coordinator with server 0 is on the first;
// workers fill the slots of one host after the other. Groups whose processes
// come onto several hosts are split; indices, ranks, ports and all else stay as
// they are. Hosts that the config names are replaced. `origin`: the flag.
// InvalidArgument: there are more workers than slots.
absl::Status PlaceOnHosts(const std::vector<HostSlots>& hosts,
                          const std::string& origin,
                          config::ClusterConfig* config, FieldOrigins* origins);

}  // namespace slackline
