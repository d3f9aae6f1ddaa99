// What is known of the process at the other end of a connection.
#pragma once

namespace slackline {

enum class LinkState {
  // It accepts connections. It may be stopped, and a partition does not show.
  kUp,
  // Nobody listens at its address any more: the process has ended.
  kGone,
  // Somebody listens there and ends every connection: it has another key than
  // this process, or one of the two has none.
  kRefused,
};

}  // namespace slackline
