// How the process treats memory that it frees.
#pragma once

namespace slackline {

// For main(), before threads start: makes the process keep the memory it frees.
// ZeroMQ allocates memory for every received frame. By default glibc returns
// freed memory to the kernel as soon as about two frames' worth of it lies
// idle, and then each message of several frames costs a page fault per page:
// about twice the CPU time at 256 KiB frames.
void KeepFreedMemory();

}  // namespace slackline
