// Text format to a message (a config, an experiment), with a place in the file
// for everything.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/block/field_origins.h"
#include "google/protobuf/message.h"

namespace slackline {

// Replaces `message` by what `text` says and adds the place of each field to
// `origins`. No defaults, no checks beyond the grammar and the types.
// InvalidArgument: one line for each unknown field and for the first other
// error, as "file:line:column: field path: what is wrong".
absl::Status ParseConfigText(const std::string& text,
                             const std::string& file_name,
                             google::protobuf::Message* message,
                             FieldOrigins* origins);

}  // namespace slackline
