// Who may say what: by the key that a peer has proved, not by what its messages
// say of themselves.
#pragma once

#include <string>

#include "common/ids.h"
#include "common/keys/key_holder.h"
#include "proto/wire.pb.h"

namespace slackline {

// Whether the holder of the key may call itself so. Anybody may be an observer.
// The holder of one worker's key has that worker's rank in all that it is.
bool MayBe(const KeyHolder& holder, const PeerId& peer);

// Empty if a listener takes this from the holder of the key. Else a sentence
// without a subject: "may not send views".
//
// A server's key may say all that comes over a network: views come from the
// coordinator as answers, and statistics from a process's own threads alone, so
// nobody may send these two. The key of one worker does not speak for others.
std::string WhyNotSay(const KeyHolder& holder, const wire::Header& header);

}  // namespace slackline
