// What `slackline run` reads from an agent, and an agent from `slackline run`.
#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "proto/agent.pb.h"
#include "tools/cli/agent/agent_frames.h"
#include "tools/cli/agent/changed_files.h"

namespace slackline {
namespace {

// What was read can be written, and reads the same.
template <typename MessageType>
void ReadAll(absl::string_view bytes, bool after_greeting) {
  AgentFrameReader reader(after_greeting);
  // In two pieces: a message may come in several.
  for (const absl::string_view piece :
       {bytes.substr(0, bytes.size() / 2), bytes.substr(bytes.size() / 2)}) {
    reader.Append(piece);
    MessageType message;
    absl::StatusOr<bool> whole = reader.Next(&message);
    for (; whole.ok() && *whole; whole = reader.Next(&message)) {
      AgentFrameReader again(/*after_greeting=*/false);
      again.Append(AgentFrame(message));
      MessageType read;
      SL_CHECK(again.Next(&read).value_or(false),
               "a message that was written cannot be read");
    }
    if (!whole.ok()) return;
  }
}

}  // namespace
}  // namespace slackline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  slackline::ReadAll<slackline::agent::FromAgent>(bytes, true);
  slackline::ReadAll<slackline::agent::FromAgent>(bytes, false);
  slackline::ReadAll<slackline::agent::ToAgent>(bytes, false);
  // A name that may be sent leads to one place.
  const std::string name(bytes);
  if (slackline::IsSentName(name)) {
    SL_CHECK(name.front() != '/' && name.find("..") != 0 &&
                 name.find("/..") == std::string::npos,
             "a name leads out of the folder");
  }
  return 0;
}
