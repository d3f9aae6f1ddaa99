// One line per event on stderr, with date and time, process name and level:
// "2026-01-02 03:04:05.678 worker 2 info: joined".
#pragma once

#include <functional>
#include <string>

#include "common/time/time_source.h"

namespace slackline {

// Call once in main(). `process` is for example "worker 2". Lines are written
// at once, so that a killed process leaves all of them. They carry the time of
// day.
void SetUpLogging(const std::string& process, const TimeSource& time);

// What a KeyWatch says goes there.
std::function<void(bool warns, const std::string& text)> LogOfKeys();

}  // namespace slackline
