// Messages of proto/agent.proto in a stream of bytes.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace slackline {

// Of a message. A config has at most half of it.
inline constexpr size_t kAgentFrameBytesMax = 2 << 20;
// What an agent says first, before its frames: a shell's start files may have
// written something before it.
inline constexpr absl::string_view kAgentGreeting = "\nslackline-agent 1\n";
inline constexpr size_t kBeforeGreetingBytesMax = 64 << 10;

// Fatal: the message is larger than kAgentFrameBytesMax.
std::string AgentFrame(const google::protobuf::MessageLite& message);

// Takes bytes as they come. Thread-compatible.
class AgentFrameReader {
 public:
  // `after_greeting`: whatever comes before kAgentGreeting is skipped.
  explicit AgentFrameReader(bool after_greeting) : greeted_(!after_greeting) {}

  void Append(absl::string_view bytes) {
    bytes_.append(bytes.data(), bytes.size());
  }
  // What has come while the greeting has not.
  absl::string_view BeforeGreeting() const {
    return greeted_ ? absl::string_view() : bytes_;
  }
  // Whether there was a whole message, which `*message` then is.
  // InvalidArgument: this is no stream of frames; nothing can follow.
  absl::StatusOr<bool> Next(google::protobuf::MessageLite* message);

 private:
  bool greeted_;
  std::string bytes_;
  size_t begin_ = 0;  // Of what was not taken yet.
};

}  // namespace slackline
