// What a process that is about to become a program does about signals.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace slackline {

// Those by which programs are ended have their default effect, and none is
// blocked. Safe after fork() in a process with threads.
inline void UseDefaultSignals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE})
    ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace slackline
