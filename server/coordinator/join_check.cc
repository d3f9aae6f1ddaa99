#include "server/coordinator/join_check.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/block/bounds.h"
#include "common/endpoint.h"

namespace slackline {
namespace {

constexpr size_t kThreadsMax = 4096;
constexpr size_t kNameBytesMax = 256;
constexpr size_t kDataBytesMax = 4096;
constexpr size_t kLocalBytesMax = 108;  // As of a sockaddr_un.
constexpr int kPortMax = 65535;

bool IsOverNetwork(absl::string_view endpoint) {
  return endpoint.size() <= kNameBytesMax && HasHostAndPort(endpoint);
}

// One at which every host reaches it, and no two of one kind.
bool AreEndpoints(const wire::Endpoints& endpoints) {
  std::set<config::Limits::Transport> kinds;
  for (const std::string& endpoint : endpoints.endpoint()) {
    const EndpointKind* const kind = FindEndpointKind(endpoint);
    if (kind == nullptr || !kinds.insert(kind->transport).second) return false;
    const bool fits = kind->scope == EndpointScope::kNetwork
                          ? IsOverNetwork(endpoint)
                          : endpoint.size() > kind->scheme.size() &&
                                endpoint.size() <= kLocalBytesMax;
    if (!fits) return false;
  }
  return !NetworkEndpoint(endpoints).empty();
}

std::string WaysToListen() {
  std::vector<std::string> ways;
  for (const EndpointKind& kind : EndpointKinds()) {
    ways.push_back(absl::StrCat(
        kind.scheme,
        kind.scope == EndpointScope::kNetwork ? "host:port" : "name"));
  }
  return absl::StrJoin(ways, ", ");
}

std::string TooMany(absl::string_view what, size_t count, size_t most) {
  return absl::StrCat("the request to join has ", count, " ", what,
                      "; at most ", most, " are allowed");
}

}  // namespace

std::string WhyNoJoin(const wire::JoinRequest& join) {
  const struct {
    absl::string_view what;
    size_t count;
    size_t most;
  } parts[] = {
      {"bytes of job name", join.job().size(), kNameBytesMax},
      {"bytes of config hash", join.config_hash().size(), kNameBytesMax},
      {"bytes of config", join.config().size(), kJoinConfigBytesMax},
      {"bytes of delays' hash", join.delays_sha256().size(), kNameBytesMax},
      {"bytes of checkpoint's hash", join.checkpoint_sha256().size(),
       kNameBytesMax},
      {"bytes of host name", join.host().size(), kNameBytesMax},
      {"bytes of host id", join.host_id().size(), kNameBytesMax},
      {"bytes about its data", join.data().size(), kDataBytesMax},
      {"bytes of data hash", join.data_hash().size(), kNameBytesMax},
      {"bytes of program name", join.build().program().size(), kNameBytesMax},
      {"bytes of version", join.build().version().size(), kNameBytesMax},
      {"bytes of commit", join.build().commit().size(), kNameBytesMax},
      {"bytes of build id", join.build().build_id().size(), kNameBytesMax},
      {"shard threads", static_cast<size_t>(join.thread_size()), kThreadsMax},
      {"tables", static_cast<size_t>(join.table_size()), kTablesOfJobMax},
  };
  for (const auto& part : parts) {
    if (part.count > part.most)
      return TooMany(part.what, part.count, part.most);
  }
  if (!join.door().empty() && !IsOverNetwork(join.door())) {
    return "the request to join has a door that nobody can connect to; "
           "tcp://host:port is required";
  }
  for (int t = 0; t < join.thread_size(); ++t) {
    if (!AreEndpoints(join.thread(t))) {
      return absl::StrCat(
          "the request to join has an endpoint for shard thread ", t,
          " that nobody can connect to; one over the network with a port of 1 "
          "to ",
          kPortMax, ", and at most one each of ", WaysToListen(),
          ", are required");
    }
  }
  for (const wire::Table& table : join.table()) {
    const size_t extents = static_cast<size_t>(table.shape_size());
    if (table.name().size() > kTableNameBytesMax) {
      return TooMany("bytes in the name of a table", table.name().size(),
                     kTableNameBytesMax);
    }
    if (extents > kTableExtentsMax)
      return TooMany("extents in the shape of a table", extents,
                     kTableExtentsMax);
  }
  return "";
}

}  // namespace slackline
