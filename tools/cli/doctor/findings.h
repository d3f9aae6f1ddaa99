// Findings of `slackline doctor` as they are made, and words for numbers in
// them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/doctor.pb.h"

namespace slackline {

class Findings {
 public:
  explicit Findings(const std::string& job) { report_.set_job(job); }

  // What comes from a host may have line ends and codes for terminals: each
  // finding is one line, of a bounded length.
  void Add(doctor::Level level, absl::string_view host, absl::string_view check,
           absl::string_view value, absl::string_view bound = "",
           absl::string_view fix = "");
  // The worst first; else as they were added.
  doctor::Report Take();

 private:
  doctor::Report report_;
};

// The host of this name; nullptr: nothing is known of it.
const doctor::Host* HostOf(const std::string& name, const doctor::Facts& facts);

// "12 kB", "1.5 GB".
std::string BytesWords(int64_t bytes);
// "0.20 ms", "100 ms".
std::string MillisecondWords(int64_t micros);

}  // namespace slackline
