#include "common/config/placement.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/host_port.h"
#include "common/io/regular_file.h"
#include "common/status.h"
#include "google/protobuf/descriptor.h"

namespace slackline {
namespace {

// They refuse slips of the keyboard, not real clusters.
constexpr int kSlotsMax = 4096;
constexpr size_t kHostsMax = 4096;
constexpr int64_t kHostFileBytesMax = 1 << 20;
// Beyond that the checks of the config refuse the count.
constexpr int64_t kPlacedMax = 8192;

// `slots_text`: empty for 1. `part` is for messages.
absl::Status AddHost(absl::string_view part, absl::string_view host,
                     absl::string_view slots_text,
                     std::vector<HostSlots>* hosts) {
  HostSlots added = {.host = std::string(host), .slots = 1};
  if (host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", part, "': a host is missing"));
  }
  constexpr absl::string_view kOfNames = "-._:";
  const auto is_wrong = [&](char c) {
    return !absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
           static_cast<unsigned char>(c) < 0x80 &&
           !absl::StrContains(kOfNames, c);
  };
  if (const auto wrong = absl::c_find_if(host, is_wrong); wrong != host.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", part, "': no name of a host has '", std::string(1, *wrong),
        "' in it; ",
        *wrong == '@' ? "name the user by --set launch.ssh.user=NAME"
                      : "HOST:WORKERS is required, with commas in between, as "
                        "in h1:4,h2:4"));
  }
  if (!slots_text.empty() && (!absl::SimpleAtoi(slots_text, &added.slots) ||
                              added.slots < 1 || added.slots > kSlotsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", part, "': the number of workers is ", slots_text,
                     "; 1 to ", kSlotsMax, " is required, as in h1:4"));
  }
  const auto same = [&](const HostSlots& other) {
    return CanonicalHost(other.host) == CanonicalHost(host);
  };
  if (std::any_of(hosts->begin(), hosts->end(), same)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", part,
                     "': the host is named twice; give it all its workers at "
                     "once, as in h1:4"));
  }
  if (hosts->size() >= kHostsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kHostsMax, " hosts are named"));
  }
  hosts->push_back(std::move(added));
  return absl::OkStatus();
}

// Host of each process, in order, and how many of one follow each other.
struct Run {
  std::string host;
  int first = 0;  // Process of the group.
  int count = 0;
};

// `next()` is the host of the next process.
template <typename Next>
std::vector<Run> RunsOf(int count, Next next) {
  std::vector<Run> runs;
  for (int p = 0; p < count; ++p) {
    const std::string& host = next();
    if (runs.empty() || runs.back().host != host)
      runs.push_back({.host = host, .first = p, .count = 0});
    ++runs.back().count;
  }
  return runs;
}

// Where each field of the group was given, for one that is made of it.
std::vector<std::pair<std::string, std::string>> OriginsOf(
    const std::string& path, const google::protobuf::Descriptor& type,
    const FieldOrigins& origins) {
  std::vector<std::pair<std::string, std::string>> found;
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string name = type.field(i)->name();
    const std::string origin = origins.At(absl::StrCat(path, ".", name));
    if (!origin.empty()) found.emplace_back(name, origin);
  }
  return found;
}

// Splits the groups. `part`: makes `group` the processes of the run.
template <typename Group, typename Next, typename Part>
void Split(const std::string& name, const std::string& origin, Next next,
           Part part, google::protobuf::RepeatedPtrField<Group>* groups,
           FieldOrigins* origins) {
  google::protobuf::RepeatedPtrField<Group> split;
  std::vector<std::vector<std::pair<std::string, std::string>>> given;
  for (int i = 0; i < groups->size(); ++i) {
    const Group& group = groups->Get(i);
    const std::string path = absl::StrCat(name, "[", i, "]");
    for (const Run& run : RunsOf(group.count(), next)) {
      Group& added = *split.Add();
      added = group;
      added.set_host(run.host);
      added.set_count(run.count);
      part(run, &added);
      given.push_back(OriginsOf(path, *Group::descriptor(), *origins));
    }
  }
  for (int i = 0; i < groups->size(); ++i)
    origins->Erase(absl::StrCat(name, "[", i, "]"));
  for (int i = 0; i < split.size(); ++i) {
    const std::string path = absl::StrCat(name, "[", i, "]");
    for (const auto& [field, where] : given[i])
      origins->Set(absl::StrCat(path, ".", field), where);
    origins->Set(absl::StrCat(path, ".host"), origin);
  }
  groups->Swap(&split);
}

template <typename Groups>
bool CanBePlaced(const Groups& groups, int64_t* total) {
  *total = 0;
  for (const auto& group : groups) {
    if (group.count() < 1) return false;
    *total += group.count();
  }
  return *total <= kPlacedMax;
}

// The host of a line of a host file, and what stands behind slots=, or nothing.
// As mpirun has it: spaces may be around a "=", and what a host can hold at
// most says nothing of what it is to hold.
absl::StatusOr<absl::string_view> HostOfLine(absl::string_view line,
                                             absl::string_view* slots) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", line, "': a host, and perhaps slots=N behind it, is required"));
  };
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t="), absl::SkipEmpty());
  if (!IsIpv6(words[0]) && absl::StrContains(words[0], ':')) return wrong();
  const size_t values = static_cast<size_t>(absl::c_count(line, '='));
  if (words.size() != 1 + 2 * values) return wrong();
  for (size_t i = 1; i < words.size(); i += 2) {
    if (words[i] == "slots") {
      *slots = words[i + 1];
    } else if (words[i] != "max_slots" && words[i] != "max-slots") {
      return wrong();
    }
  }
  return words[0];
}

}  // namespace

absl::StatusOr<std::vector<HostSlots>> ParseHosts(absl::string_view text) {
  std::vector<HostSlots> hosts;
  for (const absl::string_view each : absl::StrSplit(text, ',')) {
    const absl::string_view part = absl::StripAsciiWhitespace(each);
    if (IsIpv6(part)) {
      SL_RETURN_IF_ERROR(AddHost(part, part, "", &hosts));
      continue;
    }
    const auto [host, slots] = SplitHostPort(part);
    SL_RETURN_IF_ERROR(AddHost(part, host, slots, &hosts));
  }
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> ParseHostFile(absl::string_view text) {
  std::vector<HostSlots> hosts;
  int number = 0;
  for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line =
        absl::StripAsciiWhitespace(whole.substr(0, whole.find('#')));
    if (line.empty()) continue;
    absl::string_view slots;
    absl::StatusOr<absl::string_view> host = HostOfLine(line, &slots);
    const absl::Status added =
        host.ok() ? AddHost(line, *host, slots, &hosts) : host.status();
    if (!added.ok()) return Annotate(added, absl::StrCat("line ", number));
  }
  if (hosts.empty())
    return absl::InvalidArgumentError("no host is named; write one in a line");
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> ReadHostFile(const std::string& path) {
  SL_ASSIGN_OR_RETURN(const std::string text,
                      ReadRegularFile(path, kHostFileBytesMax));
  absl::StatusOr<std::vector<HostSlots>> hosts = ParseHostFile(text);
  if (!hosts.ok()) return Annotate(hosts.status(), path);
  return hosts;
}

absl::Status PlaceOnHosts(const std::vector<HostSlots>& hosts,
                          const std::string& origin,
                          config::ClusterConfig* config,
                          FieldOrigins* origins) {
  const auto is_even = [](const HostSlots& host) { return host.slots == 0; };
  int64_t servers = 0;
  int64_t workers = 0;
  if (!CanBePlaced(config->server(), &servers) ||
      !CanBePlaced(config->worker(), &workers)) {
    // The checks of the config say what is wrong with the counts.
    for (config::ServerGroup& group : *config->mutable_server())
      group.set_host(hosts.front().host);
    for (config::WorkerGroup& group : *config->mutable_worker())
      group.set_host(hosts.front().host);
    return absl::OkStatus();
  }
  // The first hosts have one more if they do not divide the workers.
  std::vector<int64_t> slots_of;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const int64_t count = static_cast<int64_t>(hosts.size());
    const int64_t rest = static_cast<int64_t>(i) < workers % count ? 1 : 0;
    slots_of.push_back(is_even(hosts[i]) ? workers / count + rest
                                         : hosts[i].slots);
  }
  int64_t slots = 0;
  for (const int64_t each : slots_of) slots += each;
  if (workers > slots) {
    return absl::InvalidArgumentError(absl::StrCat(
        origin, ": the hosts take ", slots, slots == 1 ? " worker" : " workers",
        ", and the config has ", workers,
        "; say how many each takes, as in --hosts h1:4,h2:4"));
  }
  if (config->has_coordinator()) {
    config->mutable_coordinator()->clear_host();  // That of server 0.
    origins->Erase("coordinator.host");
  }
  size_t server = 0;
  Split(
      "server", origin,
      [&]() -> const std::string& {
        return hosts[server++ % hosts.size()].host;
      },
      [](const Run& run, config::ServerGroup* group) {
        if (group->port() != 0)
          group->set_port(group->port() + run.first * group->threads());
      },
      config->mutable_server(), origins);
  size_t host = 0;
  int64_t used = 0;
  Split(
      "worker", origin,
      [&]() -> const std::string& {
        while (used == slots_of[host]) {
          ++host;
          used = 0;
        }
        ++used;
        return hosts[host].host;
      },
      [](const Run& run, config::WorkerGroup* group) {
        if (group->port() != 0) group->set_port(group->port() + run.first);
        if (group->gpu_size() < run.first + run.count) return;
        const std::vector<int32_t> gpus(
            group->gpu().begin() + run.first,
            group->gpu().begin() + run.first + run.count);
        group->mutable_gpu()->Assign(gpus.begin(), gpus.end());
      },
      config->mutable_worker(), origins);
  return absl::OkStatus();
}

}  // namespace slackline
