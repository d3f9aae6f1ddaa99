// What the records of a run say of it, where nobody is left who knows more: the
// server with the coordinator has died, or `slackline run` itself has.
#pragma once

#include <cstdint>
#include <istream>
#include <string>

#include "proto/run.pb.h"

namespace slackline {

// Where the records of a run end.
struct RecordsEnd {
  int64_t records = 0;  // 0: there are none, and the rest means nothing.
  int64_t step = 0;     // The largest that one is of.
  double seconds = 0;   // Since the job began to run.
  // "step 6800, 3.7 s after the job began to run"
  std::string ToString() const;
};

// Of the lines of metrics.jsonl, those of steps after `from_step`: with which a
// run begins that goes on in the folder of an earlier one. Sets in `*summary`
// what they say: steps, if there are more than it has, wall_seconds,
// examples_per_second, and losses and accuracy, each the last that was
// measured. Lines that are no records are left out. `summary` may be nullptr.
RecordsEnd PutRecords(std::istream& metrics, int64_t from_step,
                      run::Summary* summary);
// The same of FOLDER/metrics.jsonl; no records if it is no file that can be
// read.
RecordsEnd PutRecordsOf(const std::string& folder, int64_t from_step,
                        run::Summary* summary);

}  // namespace slackline
