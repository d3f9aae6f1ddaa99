#include "tools/cli/mode_text.h"

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"

namespace slackline {

std::string ModeName(const wire::View& view) {
  const int entered = view.entered();
  if (entered < 0 || entered >= view.phase_size()) return "";
  return ModeText(view.phase(entered));
}

std::string ModeOutlook(const wire::View& view) {
  std::string text = ModeName(view);
  if (text.empty()) return text;
  if (view.entered() + 1 < view.phase_size()) {
    const wire::Phase& next = view.phase(view.entered() + 1);
    absl::StrAppend(&text, ", ", ModeText(next), " from clock ", next.from());
  } else if (view.has_change()) {
    const wire::ModeChange& change = view.change();
    absl::StrAppend(&text, ", changing to ",
                    ModeText(change.mode(), change.staleness()));
  }
  return text;
}

}  // namespace slackline
