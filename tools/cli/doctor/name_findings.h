// What the hosts of a job make of names: of the others, and of their own.
#pragma once

#include <map>
#include <set>
#include <string>

#include "proto/doctor.pb.h"
#include "tools/cli/doctor/findings.h"

namespace slackline {

class NameFindings {
 public:
  // `facts` outlive it, and it adds to `findings`.
  NameFindings(const doctor::Facts& facts, Findings* findings);

  // Of one host: names, and the sizes of packets on the way to them.
  void Find(const doctor::HostNeed& need, const doctor::Host& host);
  // The machine of the command follows the job at the coordinator.
  void FindHere();

  // Hosts whose own names lead them to listen where others do not connect. All
  // of them once Find() has been called for each host.
  const std::set<std::string>& misnamed() const { return misnamed_; }

 private:
  // Several machines, so that a loopback address reaches the wrong one.
  bool HasSeveralMachines() const;
  // The address of this name as some host knows it, or the word to put it in
  // the place of.
  std::string AddressOf(const std::string& name) const;
  // A host with several interfaces whose own name leads to one that no other
  // host reaches, while it reaches them by another one.
  void FindWrongInterfaces();
  // Others have tried to reach the host, and nobody has.
  bool IsCutOff(const std::string& host) const;
  void FindSmallPackets(const doctor::Host& host);

  const doctor::Facts& facts_;
  std::map<std::string, std::string> known_;  // Addresses, by name.
  std::set<std::string> misnamed_;
  // Of hosts with a wrong interface: the name by which they reach others.
  std::map<std::string, const doctor::Name*> ways_;
  Findings& findings_;
};

}  // namespace slackline
