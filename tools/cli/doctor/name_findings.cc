#include "tools/cli/doctor/name_findings.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/cli/doctor/network_findings.h"

namespace slackline {
namespace {

using doctor::Level;

// IPv6 requires this much of every link.
constexpr int kMtuSmall = 1280;

bool IsNumericAddress(absl::string_view name) {
  if (absl::StrContains(name, ':')) return true;
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.';
  });
}

bool IsLoopbackAddress(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

}  // namespace

NameFindings::NameFindings(const doctor::Facts& facts, Findings* findings)
    : facts_(facts), findings_(*findings) {
  for (const doctor::Host& host : facts.host()) {
    for (const doctor::Name& name : host.facts().name()) {
      if (name.error().empty() && !IsLoopbackAddress(name.address()))
        known_.emplace(name.name(), name.address());
    }
  }
  FindWrongInterfaces();
}

void NameFindings::FindWrongInterfaces() {
  for (const doctor::HostNeed& need : facts_.job().host()) {
    const doctor::Host* const host = HostOf(need.name(), facts_);
    if (host == nullptr || need.listen()) continue;
    const doctor::Name* self = nullptr;
    const doctor::Name* way = nullptr;  // To another host.
    for (const doctor::Name& name : host->facts().name()) {
      if (name.name() == need.name()) {
        self = &name;
      } else if (name.error().empty() && !name.own() &&
                 !name.source().empty()) {
        way = &name;
      }
    }
    if (self == nullptr || way == nullptr || !self->own() ||
        IsLoopbackAddress(self->address()) ||
        self->address() == way->source() || !IsCutOff(need.name())) {
      continue;
    }
    ways_[need.name()] = way;
    misnamed_.insert(need.name());
  }
}

bool NameFindings::IsCutOff(const std::string& host) const {
  bool any = false;
  for (const doctor::Pair& pair : facts_.pair()) {
    if (pair.to() != host || pair.from() == host) continue;
    for (const doctor::Connection& connection : pair.connection()) {
      if (!IsCut(connection.state())) return false;
      any = true;
    }
  }
  return any;
}

bool NameFindings::HasSeveralMachines() const {
  std::set<std::string> machines;
  for (const doctor::Host& host : facts_.host())
    machines.insert(host.facts().machine_id());
  return machines.size() > 1;
}

std::string NameFindings::AddressOf(const std::string& name) const {
  const auto found = known_.find(name);
  return found == known_.end() ? "ADDRESS" : found->second;
}

void NameFindings::Find(const doctor::HostNeed& need,
                        const doctor::Host& host) {
  const bool several = HasSeveralMachines();
  for (const doctor::Name& name : host.facts().name()) {
    const bool is_self = name.name() == host.name();
    const auto& by_name = facts_.job().by_name();
    const bool needed = is_self || std::find(by_name.begin(), by_name.end(),
                                             name.name()) != by_name.end();
    const Level level = needed ? doctor::ERROR : doctor::WARNING;
    if (!name.error().empty()) {
      findings_.Add(
          level, host.name(), "names",
          absl::StrCat(name.name(), " is not known there: ", name.error()),
          needed ? "the job connects by it" : "the job does without",
          absl::StrCat("on ", host.name(), ": echo '", AddressOf(name.name()),
                       " ", name.name(), "' | sudo tee -a /etc/hosts"));
      continue;
    }
    const bool loopback = IsLoopbackAddress(name.address());
    // A name for this machine alone is fine where all is on it.
    if (loopback && several && !(is_self && need.listen())) {
      if (is_self) misnamed_.insert(host.name());
      findings_.Add(
          level, host.name(), "names",
          absl::StrCat(name.name(), " is ", name.address(),
                       " there, which only ", host.name(), " itself reaches"),
          needed ? "others have to reach it" : "the job does without",
          IsNumericAddress(name.name())
              ? "write the host's address in its network into the config"
              : absl::StrCat("on ", host.name(), ": sudo sed -i 's/^",
                             name.address(), "\\(.*", name.name(), "\\)/",
                             AddressOf(name.name()), "\\1/' /etc/hosts"));
      continue;
    }
    if (is_self && !name.own() && !need.listen()) {
      misnamed_.insert(host.name());
      findings_.Add(
          doctor::ERROR, host.name(), "names",
          absl::StrCat(name.name(), " is ", name.address(),
                       " there, which is no address of this host"),
          "its processes listen at the address of its name",
          absl::StrCat("correct the name, or have it listen at all: --set "
                       "server[N].listen=0.0.0.0"));
      continue;
    }
    if (const auto way = ways_.find(name.name());
        is_self && way != ways_.end()) {
      const std::string& right = way->second->source();
      findings_.Add(
          doctor::ERROR, host.name(), "names",
          absl::StrCat(name.name(), " is ", name.address(), " there, of ",
                       name.interface(), ", which no other host reaches"),
          absl::StrCat("others have to reach it, as at ", right, " of ",
                       way->second->interface()),
          IsNumericAddress(name.name())
              ? absl::StrCat("write ", right, " into the config")
              : absl::StrCat("on ", host.name(), ": sudo sed -i 's/^",
                             name.address(), "\\(.*", name.name(), "\\)/",
                             right, "\\1/' /etc/hosts, or ", right,
                             " in place of ", name.name(),
                             " in the config or --hosts"));
      continue;
    }
    const auto other = known_.find(name.name());
    if (ways_.count(name.name()) == 0 && !loopback && other != known_.end() &&
        other->second != name.address()) {
      findings_.Add(
          doctor::WARNING, host.name(), "names",
          absl::StrCat(name.name(), " is ", name.address(), " there, and ",
                       other->second, " elsewhere"),
          "one address is expected",
          absl::StrCat("getent hosts ", name.name(),
                       " on both; write the right address into the config"));
    } else {
      findings_.Add(
          doctor::OK, host.name(), "names",
          absl::StrCat(
              name.name(), " is ", name.address(),
              is_self ? ", its own, of " : ", by ",
              name.interface().empty() ? "no interface" : name.interface(),
              name.mtu() > 0 ? absl::StrCat(" (MTU ", name.mtu(), ")") : ""));
    }
  }
  FindSmallPackets(host);
}

void NameFindings::FindSmallPackets(const doctor::Host& host) {
  // By the names of others, if there are any.
  std::map<std::string, const doctor::Name*> small;
  for (const doctor::Name& name : host.facts().name()) {
    if (name.mtu() <= 0 || name.mtu() >= kMtuSmall) continue;
    const doctor::Name*& kept = small[name.interface()];
    if (kept == nullptr || kept->own()) kept = &name;
  }
  for (const auto& [interface, name] : small) {
    findings_.Add(
        doctor::WARNING, host.name(), "mtu",
        absl::StrCat(interface, ", by which ", name->name(),
                     " is reached, has packets of ", name->mtu(), " bytes"),
        "1500 are usual",
        absl::StrCat("on ", host.name(), ": sudo ip link set dev ", interface,
                     " mtu 1500, if all of the network takes that"));
  }
}

void NameFindings::FindHere() {
  for (const doctor::Name& name : facts_.here().name()) {
    if (name.error().empty()) continue;
    findings_.Add(
        doctor::ERROR, "this machine", "names",
        absl::StrCat(name.name(), " is not known here: ", name.error()),
        "slackline run follows the job there",
        absl::StrCat("echo '", AddressOf(name.name()), " ", name.name(),
                     "' | sudo tee -a /etc/hosts"));
  }
}

}  // namespace slackline
