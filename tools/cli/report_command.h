// `slackline report`: the report of an experiment, made by a Python program.
#pragma once

#include <string>

namespace slackline {

struct ReportOptions {
  std::string folder;   // Of the experiment.
  std::string bin_dir;  // Of slackline_report.py.
};

// Returns the exit code. What the report says about its results goes to stdout.
int MakeReport(const ReportOptions& options);

}  // namespace slackline
