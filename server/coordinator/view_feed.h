// ViewFeed: brings members from the view that they have to the present one: by
// the changes in between while these are kept, else by the whole view.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>

#include "server/coordinator/effects.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class ViewFeed {
 public:
  // `editor` outlives it.
  explicit ViewFeed(const ViewEditor* editor) : editor_(editor) {}

  // After a commit that was not kNothing.
  void OnCommit(ViewEditor::Committed committed);
  // What is new since view `known`; 0: the member has none.
  void Send(const PeerId& to, uint64_t known,
            CoordinatorEffects* effects) const;

 private:
  const ViewEditor* const editor_;
  // The last ones without a gap, oldest first.
  std::deque<wire::ViewChange> changes_;
};

}  // namespace slackline
