#include "tools/cli/doctor/findings.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace slackline {
namespace {

// A line of a finding is read on a terminal.
constexpr size_t kPartLengthMax = 1000;

// What comes from a host may have line ends and codes for terminals.
std::string OnOneLine(absl::string_view text) {
  std::string line(text.substr(0, kPartLengthMax));
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  if (text.size() > kPartLengthMax) line += "...";
  return line;
}

}  // namespace

std::string BytesWords(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return absl::StrFormat("%.1f GB", b / 1e9);
  if (bytes >= 1'000'000) return absl::StrFormat("%.0f MB", b / 1e6);
  return absl::StrFormat("%.0f kB", b / 1e3);
}

std::string MillisecondWords(int64_t micros) {
  const double milliseconds = static_cast<double>(micros) / 1e3;
  return micros < 10'000 ? absl::StrFormat("%.2f ms", milliseconds)
                         : absl::StrFormat("%.0f ms", milliseconds);
}

void Findings::Add(doctor::Level level, absl::string_view host,
                   absl::string_view check, absl::string_view value,
                   absl::string_view bound, absl::string_view fix) {
  doctor::Finding& finding = *report_.add_finding();
  finding.set_level(level);
  finding.set_host(OnOneLine(host));
  finding.set_check(std::string(check));
  finding.set_value(OnOneLine(value));
  finding.set_bound(OnOneLine(bound));
  finding.set_fix(OnOneLine(fix));
  if (level == doctor::ERROR) report_.set_errors(report_.errors() + 1);
  if (level == doctor::WARNING) report_.set_warnings(report_.warnings() + 1);
}

doctor::Report Findings::Take() {
  std::stable_sort(report_.mutable_finding()->begin(),
                   report_.mutable_finding()->end(),
                   [](const doctor::Finding& a, const doctor::Finding& b) {
                     return a.level() > b.level();
                   });
  return std::move(report_);
}

const doctor::Host* HostOf(const std::string& name,
                           const doctor::Facts& facts) {
  for (const doctor::Host& host : facts.host()) {
    if (host.name() == name) return &host;
  }
  return nullptr;
}

}  // namespace slackline
