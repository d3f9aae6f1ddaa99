// What a thread is called in /proc, in debuggers, and in `slackline status
// --stacks`.
#pragma once

#include <pthread.h>

#include <string>

namespace slackline {

// The kernel keeps 15 bytes. Not for the main thread, whose name is that of the
// process.
inline void NameThisThread(const std::string& name) {
  (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace slackline
