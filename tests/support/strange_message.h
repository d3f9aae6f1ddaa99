// What a message is changed to, to see what becomes of one that makes no sense.
#pragma once

#include <vector>

#include "common/payload.h"
#include "common/rng.h"
#include "google/protobuf/message.h"

namespace slackline {

// One scalar field somewhere in the message gets a strange value, or is
// repeated once more.
void ChangeField(Rng& rng, google::protobuf::Message* message);

// One payload more, less, or shorter.
void ChangePayloads(Rng& rng, std::vector<Payload>* payloads);

}  // namespace slackline
