// What the tables of a job may be, and with which optimizer each is trained:
// every rule about the tables that a worker brings, but for the lengths of
// their names and shapes, which join_check.h bounds in any request.
#pragma once

#include <string>

#include "proto/wire.pb.h"
#include "server/coordinator/job_terms_options.h"

namespace slackline {

// Gives each table that comes without an optimizer that of the config, if there
// is one, and writes out the defaults of each.
void CompleteTables(const JobTermsOptions& job, wire::JoinRequest* join);

// Empty if there are tables, the coordinator can place them, and each has an
// optimizer that can be computed with; else completes "worker 2". The tables
// are complete.
std::string WhyTablesUnfit(const wire::JoinRequest& join,
                           const JobTermsOptions& job);

// Empty if both workers bring the same tables, which fit and are complete; else
// a sentence that begins with `who`.
std::string WhyOtherTables(const std::string& who,
                           const wire::JoinRequest& join,
                           const std::string& other,
                           const wire::JoinRequest& of_other);

}  // namespace slackline
