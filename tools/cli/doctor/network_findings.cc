#include "tools/cli/doctor/network_findings.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {
namespace {

using doctor::Connection;

// Hosts of one cluster answer within a millisecond; from here on each step in
// which workers wait for servers is noticeably longer.
constexpr int64_t kRoundTripSlowUs = 20'000;
// 100 Mbit/s and less: docs/results/compression.md.
constexpr double kBytesPerSecondSlow = 12.5e6;

class Network {
 public:
  Network(const doctor::Facts& facts, const std::set<std::string>& misnamed,
          Findings* findings)
      : facts_(facts), misnamed_(misnamed), findings_(*findings) {}

  // Adds the culprit of the pairs that do not connect: a host that nobody
  // reaches, a host that reaches nobody, one direction, or a pair.
  void Find() {
    std::map<std::string, std::vector<const doctor::Pair*>> into, out_of;
    std::map<std::pair<std::string, std::string>, const doctor::Pair*> pairs;
    for (const doctor::Pair& pair : facts_.pair()) {
      if (pair.from().empty() || pair.from() == pair.to()) continue;
      if (!pair.error().empty() || pair.connection_size() == 0) continue;
      into[pair.to()].push_back(&pair);
      out_of[pair.from()].push_back(&pair);
      pairs[{pair.from(), pair.to()}] = &pair;
    }
    const auto all_shut = [](const std::vector<const doctor::Pair*>& some) {
      return some.size() > 1 && std::all_of(some.begin(), some.end(),
                                            [](const doctor::Pair* pair) {
                                              return IsShut(*pair);
                                            });
    };
    std::set<std::string> unreached, reach_nobody;
    for (const auto& [host, some] : into) {
      if (all_shut(some) && misnamed_.count(host) == 0) unreached.insert(host);
    }
    for (const auto& [host, some] : out_of) {
      const bool all = all_shut(some);
      const bool some_else =
          std::any_of(some.begin(), some.end(), [&](const doctor::Pair* pair) {
            return unreached.count(pair->to()) == 0 &&
                   misnamed_.count(pair->to()) == 0;
          });
      if (all && some_else) reach_nobody.insert(host);
    }
    std::set<std::string> cut_off;
    for (const std::string& host : unreached) {
      const bool both = reach_nobody.count(host) > 0;
      if (both) cut_off.insert(host);
      findings_.Add(
          doctor::ERROR, host, "network",
          absl::StrCat(both ? "no other host reaches it, and it reaches none"
                            : "no other host reaches it",
                       ", as ", Ports(*into[host].front())),
          "the job's processes connect so",
          both ? absl::StrCat("on ", host, ": ip address; ip route")
               : FilterFix(host, *into[host].front()));
    }
    for (const std::string& host : reach_nobody) {
      if (cut_off.count(host) > 0) continue;
      findings_.Add(
          doctor::ERROR, host, "network",
          absl::StrCat("it reaches no other host, as ",
                       Ports(*out_of[host].front())),
          "the job's processes connect so",
          absl::StrCat("on ", host,
                       ": sudo nft list ruleset (or iptables -S OUTPUT) and ip "
                       "route show what its packets meet"));
    }
    for (const auto& [names, pair] : pairs) {
      const auto& [from, to] = names;
      if (unreached.count(to) > 0 || reach_nobody.count(from) > 0) continue;
      const auto back = pairs.find({to, from});
      OnePair(*pair, back == pairs.end() ? nullptr : back->second);
    }
    for (const doctor::Pair& pair : facts_.pair()) {
      if (pair.from() == pair.to()) {
        OnePair(pair, nullptr);
      } else if (!pair.error().empty()) {
        findings_.Add(
            doctor::NOTE, pair.from().empty() ? "this machine" : pair.from(),
            "network", absl::StrCat("to ", pair.to(), ": ", pair.error()));
      } else if (pair.from().empty() && unreached.count(pair.to()) == 0) {
        OnePair(pair, nullptr);
      }
    }
  }

 private:
  // Of doors that are all open, the one to which most was sent.
  static const Connection* Worst(const doctor::Pair& pair) {
    const Connection* worst = nullptr;
    for (const Connection& connection : pair.connection()) {
      if (IsCut(connection.state())) return &connection;
      const bool open = connection.state() == Connection::OPEN;
      if (worst == nullptr ||
          (worst->state() == Connection::OPEN &&
           (!open || connection.bytes() > worst->bytes()))) {
        worst = &connection;
      }
    }
    return worst;
  }
  static std::string Ports(const doctor::Pair& pair) {
    std::vector<std::string> ports;
    for (const Connection& connection : pair.connection()) {
      if (IsCut(connection.state()))
        ports.push_back(absl::StrCat(connection.endpoint(), " (",
                                     connection.label(),
                                     "): ", connection.detail()));
    }
    return absl::StrJoin(ports, ", ");
  }
  // All of its doors are shut, so it is the host and not a port.
  static bool IsShut(const doctor::Pair& pair) {
    return pair.connection_size() > 0 &&
           std::all_of(pair.connection().begin(), pair.connection().end(),
                       [](const Connection& c) { return IsCut(c.state()); });
  }

  static std::string FilterFix(const std::string& host,
                               const doctor::Pair& pair) {
    const Connection* const worst = Worst(pair);
    const std::string& endpoint = worst->endpoint();
    const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
    const bool any = worst->label() == "any port";
    return absl::StrCat(
        "on ", host, ": sudo ufw allow ",
        any ? absl::StrCat("from ",
                           pair.from().empty() ? "this machine" : pair.from())
            : absl::StrCat(port, "/tcp"),
        " (or the like for its firewall)",
        any ? ", or fix ports by --set 'server[N].port=PORT' and open those"
            : "");
  }

  void OnePair(const doctor::Pair& pair, const doctor::Pair* back) {
    const std::string from = pair.from().empty() ? "this machine" : pair.from();
    const Connection* const worst = Worst(pair);
    if (worst == nullptr) return;
    if (worst->state() != Connection::OPEN && misnamed_.count(pair.to()) > 0)
      return;
    const std::string to = absl::StrCat(pair.to(), " at ", worst->endpoint(),
                                        " (", worst->label(), ")");
    switch (worst->state()) {
      case Connection::NO_ANSWER:
      case Connection::NO_ROUTE:
      case Connection::REFUSED: {
        const bool one_way =
            back != nullptr && back->connection_size() > 0 && !IsShut(*back);
        findings_.Add(
            doctor::ERROR, from, "network",
            absl::StrCat(
                pair.from() == pair.to() ? "it does not reach itself as "
                                         : "it does not reach ",
                to, ": ", worst->detail(),
                one_way
                    ? absl::StrCat(", though ", pair.to(), " reaches ", from,
                                   ": a filter lets one direction "
                                   "through only")
                    : ""),
            "the job's processes connect so",
            worst->state() == Connection::NO_ROUTE
                ? absl::StrCat("on ", from, ": ip route get ", pair.to())
                : FilterFix(pair.to(), pair));
        return;
      }
      case Connection::STRANGER:
        findings_.Add(doctor::ERROR, from, "network",
                      absl::StrCat("at ", to, " another program answers"),
                      "the agent there has to",
                      absl::StrCat("getent hosts ", pair.to(),
                                   " there, and correct the address"));
        return;
      case Connection::STALLED:
        findings_.Add(
            doctor::ERROR, from, "network",
            absl::StrCat("to ", to,
                         " small messages pass and large ones vanish: ",
                         worst->detail()),
            "packets of the interface's MTU have to pass",
            absl::StrCat("on ", from, ": ping -M do -s 1472 ", pair.to(),
                         " finds the size; sudo ip link set dev ",
                         InterfaceOf(pair),
                         " mtu SMALLER, or let ICMP "
                         "pass"));
        return;
      case Connection::NO_NAME:
        return;  // Names() has said it.
      default:
        break;
    }
    if (worst->state() != Connection::OPEN) return;
    const double rate = worst->micros() > 0
                            ? static_cast<double>(worst->bytes()) * 1e6 /
                                  static_cast<double>(worst->micros())
                            : 0;
    std::string text =
        absl::StrCat("to ", to, ": ", MillisecondWords(worst->round_trip_us()),
                     " round trip");
    // Else too little was sent to tell a rate by, or for too few round trips.
    const bool measured =
        worst->bytes() >= 100'000 && worst->round_trip_us() < kRoundTripSlowUs;
    if (measured) {
      absl::StrAppend(&text, ", ", BytesWords(static_cast<int64_t>(rate)),
                      "/s");
    }
    if (worst->round_trip_us() >= kRoundTripSlowUs) {
      findings_.Add(doctor::WARNING, from, "network", text,
                    absl::StrCat("below ", MillisecondWords(kRoundTripSlowUs),
                                 " is usual; each step waits that long"),
                    "--mode ssp:3, or put the hosts nearer");
    } else if (measured && rate < kBytesPerSecondSlow) {
      findings_.Add(
          doctor::WARNING, from, "network", text,
          absl::StrCat("more than ",
                       BytesWords(static_cast<int64_t>(kBytesPerSecondSlow)),
                       "/s is usual"),
          "--set 'sync.compression[0]={int8{} parameters:BFLOAT16}'");
    } else {
      findings_.Add(doctor::OK, from, "network", text);
    }
  }

  std::string InterfaceOf(const doctor::Pair& pair) const {
    for (const doctor::Host& host : facts_.host()) {
      if (host.name() != pair.from()) continue;
      for (const doctor::Name& name : host.facts().name()) {
        if (name.name() == pair.to() && !name.interface().empty())
          return name.interface();
      }
    }
    return "INTERFACE";
  }

  const doctor::Facts& facts_;
  const std::set<std::string>& misnamed_;
  Findings& findings_;
};

}  // namespace

void FindInNetwork(const doctor::Facts& facts,
                   const std::set<std::string>& misnamed, Findings* findings) {
  Network(facts, misnamed, findings).Find();
}

}  // namespace slackline
