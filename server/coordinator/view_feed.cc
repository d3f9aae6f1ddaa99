#include "server/coordinator/view_feed.h"

#include <utility>

namespace slackline {
namespace {

// Who is further behind gets the whole view.
constexpr size_t kChangesMax = 32;

}  // namespace

void ViewFeed::OnCommit(ViewEditor::Committed committed) {
  if (committed == ViewEditor::Committed::kWhole) return changes_.clear();
  if (changes_.size() == kChangesMax) changes_.pop_front();
  changes_.push_back(editor_->change());
}

void ViewFeed::Send(const PeerId& to, uint64_t known,
                    CoordinatorEffects* effects) const {
  if (known >= editor_->view().number()) return;
  if (!changes_.empty() && known >= changes_.front().base()) {
    for (size_t i = known - changes_.front().base(); i < changes_.size(); ++i) {
      Outgoing out{.to = to, .message = {}};
      *out.message.header.mutable_view_change() = changes_[i];
      effects->sends.push_back(std::move(out));
    }
    return;
  }
  Outgoing out{.to = to, .message = {}};
  *out.message.header.mutable_view() = editor_->view();
  effects->sends.push_back(std::move(out));
}

}  // namespace slackline
