// What is known of the process at the other end of a connection.
#pragma once

namespace slackline {

enum class LinkState {
  // It has taken up the connection. It may be stopped since, and a partition
  // does not show.
  kUp,
  // Its host has; the process has not said anything yet, as one that is
  // stopped.
  kConnected,
  // Nobody listens at its address any more: the process has ended.
  kGone,
  // Somebody listens there and has said that it will not speak with this
  // process: the other has another key than it should, or one of the two has
  // none.
  kRefused,
  // Somebody accepts the connection there, and ends it at once: a process with
  // another key, or somebody in between who finds nobody behind him, or one
  // that
  // just ends.
  kDropped,
};

}  // namespace slackline
