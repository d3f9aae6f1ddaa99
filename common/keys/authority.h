// Who may say what: by the role whose key a peer has proved, not by what its
// messages say of themselves.
#pragma once

#include <string>

#include "common/ids.h"
#include "common/keys/role.h"
#include "proto/wire.pb.h"

namespace slackline {

// Whether a holder of the role's key may call itself so. Anybody may be an
// observer.
bool MayBe(Role role, PeerId::Kind kind);

// Empty if a listener takes this from a holder of the role's key. Else a
// sentence without a subject: "may not send views".
//
// A server's key may say all that comes over a network: views come from the
// coordinator as answers, and statistics from a process's own threads alone, so
// nobody may send these two.
std::string WhyNotSay(Role role, const wire::Header& header);

}  // namespace slackline
