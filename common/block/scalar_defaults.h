// Defaults of the schema, written out: equal blocks of a config become equal
// messages.
#pragma once

#include "google/protobuf/message.h"

namespace slackline {

// Gives every scalar field with a default an explicit value, in this message
// and in the blocks that are present in it.
void WriteScalarDefaults(google::protobuf::Message* message);

}  // namespace slackline
