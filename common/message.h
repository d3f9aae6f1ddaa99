// A message as the cores see it: the header and its payload frames.
#pragma once

#include <vector>

#include "common/ids.h"
#include "common/payload.h"
#include "proto/wire.pb.h"

namespace slackline {

struct Message {
  wire::Header header;
  std::vector<Payload> payloads;
};

struct Outgoing {
  PeerId to;
  Message message;
};

}  // namespace slackline
