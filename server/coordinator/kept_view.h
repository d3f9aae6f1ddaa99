// KeptView: the job's view as the next coordinator gets it: whole, and what has
// changed since then, until that is as large as the whole.
//
// Thread-compatible.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"
#include "server/coordinator/state/kept_state.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class KeptView : public CoordinatorPart {
 public:
  // Both outlive it.
  KeptView(Membership* members, ViewEditor* editor)
      : members_(members), editor_(editor) {}

  // What the editor has committed in this event.
  void OnCommit(ViewEditor::Committed committed) { committed_ = committed; }

  void Keep(absl::Time now, KeptState* kept) override;
  // Gives the editor the view, and the members what the view says of them.
  // While the job forms there is no view, and the members make the first one.
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;

 private:
  Membership* const members_;
  ViewEditor* const editor_;
  size_t changes_bytes_ = 0;  // Bytes of the changes after the kept view.
  bool next_is_whole_ = false;
  // What the editor has committed since Keep().
  ViewEditor::Committed committed_ = ViewEditor::Committed::kNothing;
};

}  // namespace slackline
