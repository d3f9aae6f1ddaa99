// KeptView: the job's view as the next coordinator gets it: whole, and what has
// changed since then, until that is as large as the whole.
//
// Thread-compatible.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/state/kept_state.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class KeptView {
 public:
  // Both outlive it.
  KeptView(Membership* members, ViewEditor* editor)
      : members_(members), editor_(editor) {}

  // After each event, with what the editor has committed in it.
  void Keep(ViewEditor::Committed committed, KeptState* kept);
  // The members are loaded: gives the editor the view, and the members what the
  // view says of them. While the job forms there is no view, and the members
  // make the first one. Errors are those of StateReader.
  absl::Status Load(const StateReader& reader);

 private:
  // What the view says of members. Returns how many of these there are.
  int TellMembers() const;

  Membership* const members_;
  ViewEditor* const editor_;
  size_t changes_bytes_ = 0;  // Of those that come after the kept view.
  bool next_is_whole_ = false;
};

}  // namespace slackline
