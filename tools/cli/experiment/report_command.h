// `slackline report`: the report of an experiment, made by a Python program.
#pragma once

#include <string>

namespace slackline {

struct ReportOptions {
  std::string folder;   // Of the experiment.
  std::string bin_dir;  // Of slackline_report.py.
};

// Returns the exit code. The path of the report and a table of its results go
// to stdout.
int MakeReport(const ReportOptions& options);

}  // namespace slackline
