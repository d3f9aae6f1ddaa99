// What connections between the hosts of a job say: who is to blame for those
// that fail, and which are slow.
#pragma once

#include <set>
#include <string>

#include "proto/doctor.pb.h"
#include "tools/cli/doctor/findings.h"

namespace slackline {

// Nobody is reached.
inline bool IsCut(doctor::Connection::State state) {
  return state == doctor::Connection::NO_ANSWER ||
         state == doctor::Connection::NO_ROUTE ||
         state == doctor::Connection::REFUSED;
}

// A host that nobody reaches, a host that reaches nobody, one direction, or a
// pair: one finding for each cause. `misnamed`: hosts whose own names lead them
// to listen where others do not connect, which was said.
void FindInNetwork(const doctor::Facts& facts,
                   const std::set<std::string>& misnamed, Findings* findings);

}  // namespace slackline
