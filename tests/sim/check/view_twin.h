// Views as the coordinator has published them: who lives, which phases there
// are, and how far each worker has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/message.h"
#include "tests/sim/check/bits.h"
#include "tests/sim/check/findings.h"

namespace slackline::sim {

class ViewTwin {
 public:
  explicit ViewTwin(Findings& findings) : findings_(findings) {}

  // The coordinator made this view. Returns the one before; nullopt: it is
  // none to follow.
  std::optional<wire::View> OnPublished(const wire::View& view);
  // Nothing is taken back of the phases, and none begins where somebody is.
  void CheckPhases(const wire::View& before, const wire::View& view);
  void OnJoined(bool server, int32_t index);
  void OnMemberView(const PeerId& member, const wire::View& view);
  // Its first push will be that of `clock`.
  void OnStart(const Life& life, Clock clock) { starts_[life] = clock; }
  // It asks for this clock, or begins it.
  void Reach(const Life& life, Clock clock);
  // The step is one that there is, and of the mode of its clock.
  void CheckStep(const Life& life, Clock clock, bool by_all_reduce);
  // A live worker asks for, or pushes, something of `clock`, and knows so many
  // phases.
  void CheckFence(const Life& life, Clock clock, int phases,
                  const std::string& what);

  // The view that the message brings, whole or as a change; nullopt: it brings
  // none.
  std::optional<wire::View> ViewIn(const wire::Header& header) const;
  // The last one published.
  const wire::View& latest() const { return latest_; }
  // How the job synchronises at this clock, as far as anybody knows.
  const wire::Phase& PhaseOf(Clock clock) const;
  // Lives that the coordinator counts as members now.
  const std::set<Life>& live() const { return live_; }
  bool Live(const Life& life) const { return live_.count(life) > 0; }
  // The first view with it; 0: none has had it.
  uint64_t JoinedIn(const Life& life) const;
  const std::map<Life, uint64_t>& joined_in() const { return joined_in_; }
  // The largest clocks asked for or begun, and the first ones pushed.
  const std::map<Life, Clock>& reached() const { return reached_; }
  const std::map<Life, Clock>& starts() const { return starts_; }
  // Of all servers that ever joined; and how often anybody was told that it
  // has joined.
  const std::set<int32_t>& server_indices() const { return server_indices_; }
  size_t joined_count() const { return joined_count_; }

 private:
  Findings& findings_;
  std::map<uint64_t, std::string> published_;  // By number.
  std::map<PeerId, uint64_t> member_view_;
  wire::View latest_;
  std::set<int32_t> server_indices_;
  size_t joined_count_ = 0;
  std::set<Life> live_;
  std::map<Life, uint64_t> joined_in_;
  std::map<Life, Clock> starts_;
  std::map<Life, Clock> reached_;
};

}  // namespace slackline::sim
