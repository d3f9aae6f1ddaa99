// Where the processes of a running job are: asked of the coordinator, which
// asks them. For `slackline status --stacks` and the page of `slackline open`.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/inspection.pb.h"
#include "tools/cli/job/coordinator_client.h"

namespace slackline {

// Of "worker 2", or "worker-2" as its log is named. InvalidArgument: it is no
// such name.
absl::StatusOr<wire::MemberName> ParseMemberName(const std::string& text);
std::string MemberText(const wire::MemberName& name);  // "worker 2"

// `worker 2 (node7, pid 4711), in train.py line 41, in load`, and below it what
// its process says, indented.
std::string StacksText(const wire::Inspected& inspected);
// {"of", "host", "pid", "where", "text", "error"}; the last one is null, or why
// there are no stacks.
nlohmann::ordered_json StacksJson(const wire::Inspected& inspected);

// One question. Thread-compatible.
class StacksQuestion {
 public:
  // Who has not answered by then is taken not to answer.
  static constexpr absl::Duration kPatience = absl::Seconds(5);

  // To those that are named; none: to all. The client outlives it. Errors as of
  // CoordinatorClient::BeginInspection().
  static absl::StatusOr<StacksQuestion> Ask(
      CoordinatorClient* client, const std::vector<wire::MemberName>& of,
      absl::Duration wait_max);

  // The next answer that has come; nullopt: none by now. Errors as of
  // CoordinatorClient::NextOfInspection().
  absl::StatusOr<std::optional<wire::Inspected>> Next();
  // All have answered, or are gone, as of the last Next().
  bool over() const { return missing_.empty(); }
  // Whose answers are missing: "worker 2".
  const std::vector<std::string>& missing() const { return missing_; }
  // Sentences about members that will not answer.
  const std::vector<std::string>& gone() const { return gone_; }

 private:
  StacksQuestion(CoordinatorClient* client, absl::Duration wait_max)
      : client_(client), wait_max_(wait_max) {}
  void Add(const wire::InspectionState& state);

  CoordinatorClient* client_;
  absl::Duration wait_max_;
  uint64_t number_ = 0;
  int32_t received_ = 0;
  std::vector<std::string> missing_;
  std::vector<std::string> gone_;
};

}  // namespace slackline
