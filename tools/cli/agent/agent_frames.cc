#include "tools/cli/agent/agent_frames.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr size_t kSizeBytes = 4;

}  // namespace

std::string AgentFrame(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  SL_CHECK(size <= kAgentFrameBytesMax, "a message for an agent is too large");
  std::string frame;
  frame.reserve(kSizeBytes + size);
  for (const int shift : {24, 16, 8, 0})
    frame.push_back(static_cast<char>(size >> shift & 0xff));
  SL_CHECK(message.AppendToString(&frame), "a message in memory is written");
  return frame;
}

absl::StatusOr<bool> AgentFrameReader::Next(
    google::protobuf::MessageLite* message) {
  if (!greeted_) {
    const size_t at = absl::string_view(bytes_).find(kAgentGreeting);
    if (at == absl::string_view::npos) {
      if (bytes_.size() <= kBeforeGreetingBytesMax) return false;
      return absl::InvalidArgumentError(absl::StrCat(
          "no agent answers: more than ", kBeforeGreetingBytesMax,
          " bytes of other output came; the start files of the shell there "
          "must not write so much"));
    }
    greeted_ = true;
    bytes_.erase(0, at + kAgentGreeting.size());
  }
  const absl::string_view left = absl::string_view(bytes_).substr(begin_);
  if (left.size() < kSizeBytes) return false;
  size_t size = 0;
  for (size_t i = 0; i < kSizeBytes; ++i)
    size = size << 8 | static_cast<uint8_t>(left[i]);
  if (size > kAgentFrameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message has ", size, " bytes; at most ",
                     kAgentFrameBytesMax, " are allowed"));
  }
  if (left.size() < kSizeBytes + size) return false;
  if (!message->ParseFromArray(left.data() + kSizeBytes,
                               static_cast<int>(size))) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", size, " bytes cannot be read"));
  }
  begin_ += kSizeBytes + size;
  // What was taken goes once it is most of it, so each byte is moved once.
  if (begin_ > bytes_.size() / 2) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
  return true;
}

}  // namespace slackline
