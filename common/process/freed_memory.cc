#include "common/process/freed_memory.h"

#include <malloc.h>

namespace slackline {

void KeepFreedMemory() {
  // The largest threshold that glibc allows, and a heap of many messages.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace slackline
