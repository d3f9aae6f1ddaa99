#include "tools/cli/doctor/report_text.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {
namespace {

using doctor::Finding;
using doctor::Level;

std::string LevelWord(Level level) {
  return absl::AsciiStrToLower(doctor::Level_Name(level));
}

}  // namespace

std::string FindingLine(const Finding& finding) {
  std::string line =
      absl::StrCat(LevelWord(finding.level()), ": ", finding.host(), ": ",
                   finding.check(), ": ", finding.value());
  if (!finding.bound().empty())
    absl::StrAppend(&line, " (", finding.bound(), ")");
  if (!finding.fix().empty()) absl::StrAppend(&line, "; ", finding.fix());
  return line;
}

std::string ReportText(const doctor::Report& report, bool all) {
  std::string text;
  int fine = 0;
  std::set<std::string> hosts;
  std::vector<std::string> checks;
  for (const Finding& finding : report.finding()) {
    hosts.insert(finding.host());
    const bool is_fine = finding.level() == doctor::OK;
    if (is_fine) {
      ++fine;
      if (std::find(checks.begin(), checks.end(), finding.check()) ==
          checks.end()) {
        checks.push_back(finding.check());
      }
    }
    if (is_fine && !all) continue;
    absl::StrAppend(&text, FindingLine(finding), "\n");
  }
  const auto count = [](int number, const char* what) {
    return absl::StrCat(number, " ", what, number == 1 ? "" : "s");
  };
  absl::StrAppend(
      &text, "job ", report.job(), ": ", count(report.errors(), "error"), ", ",
      count(report.warnings(), "warning"), "; ", count(fine, "check"),
      fine == 1 ? " is" : " are", " fine",
      checks.empty() ? ""
                     : absl::StrCat(" (", absl::StrJoin(checks, ", "), ")"),
      all || fine == 0 ? "" : "; --verbose shows them", "\n");
  return text;
}

}  // namespace slackline
