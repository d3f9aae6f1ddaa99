// Losses: whether a running job can do without a member that is gone, and if
// not, how it ends.
//
// Owns nothing: it asks who has copies of a server's shards, whether the mode
// can do without a worker's gradients, and who has come to take its place. All
// of them outlive it.
//
// Pure. Thread-compatible.
#pragma once

#include <optional>

#include "proto/view.pb.h"
#include "server/coordinator/copies.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/mode_control.h"
#include "server/coordinator/part.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class Losses {
 public:
  Losses(const Membership* members, const Copies* copies,
         const ModeControl* modes, const ViewEditor* editor)
      : members_(*members),
        copies_(*copies),
        modes_(*modes),
        editor_(*editor) {}

  // The job's end; nullopt: others have copies of all shards of the server.
  std::optional<wire::JobEnd> OfServer(const GoneMember& gone) const;
  // The job's end; nullopt: there are other workers, or one that waits to join
  // may take its place.
  std::optional<wire::JobEnd> OfWorker(const GoneMember& gone) const;
  // The job's end if none of those who wait to join could.
  wire::JobEnd OfLastWorker(const GoneMember& gone) const;

 private:
  const Membership& members_;
  const Copies& copies_;
  const ModeControl& modes_;
  const ViewEditor& editor_;
};

}  // namespace slackline
