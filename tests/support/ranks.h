// What tests and benchmarks of collectives have in common: ranks as processes,
// a store that they share, and numbers to send.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rng.h"
#include "common/status.h"
#include "worker/collective/rendezvous_store.h"

namespace slackline {

// A store in memory that forked processes share.
class SharedMemoryStore final : public RendezvousStore {
 public:
  SharedMemoryStore() {
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    SL_CHECK(memory != MAP_FAILED, "mmap failed");
    shared_ = new (memory) Shared;
    pthread_mutexattr_t mutex_attributes;
    pthread_mutexattr_init(&mutex_attributes);
    pthread_mutexattr_setpshared(&mutex_attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared_->mutex, &mutex_attributes);
    pthread_condattr_t changed_attributes;
    pthread_condattr_init(&changed_attributes);
    pthread_condattr_setpshared(&changed_attributes, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared_->changed, &changed_attributes);
  }
  // A condition variable on which a killed process waits cannot be destroyed,
  // so only the memory goes.
  ~SharedMemoryStore() override { munmap(shared_, sizeof(Shared)); }

  absl::Status Put(const std::string& key, std::string value) override {
    pthread_mutex_lock(&shared_->mutex);
    SL_CHECK(Find(key) == nullptr, "a key is written once");
    SL_CHECK(shared_->count < kEntries, "too many keys");
    Entry& entry = shared_->entries[shared_->count++];
    SL_CHECK(key.size() < sizeof(entry.key), "the key is too long");
    SL_CHECK(value.size() <= sizeof(entry.value), "the value is too long");
    std::strcpy(entry.key, key.c_str());
    std::memcpy(entry.value, value.data(), value.size());
    entry.bytes = value.size();
    pthread_mutex_unlock(&shared_->mutex);
    pthread_cond_broadcast(&shared_->changed);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration wait_max) override {
    const timespec deadline = absl::ToTimespec(absl::Now() + wait_max);
    pthread_mutex_lock(&shared_->mutex);
    const Entry* entry;
    int error = 0;
    while ((entry = Find(key)) == nullptr && error == 0) {
      error =
          pthread_cond_timedwait(&shared_->changed, &shared_->mutex, &deadline);
    }
    absl::StatusOr<std::string> value =
        absl::DeadlineExceededError(absl::StrCat("no key ", key));
    if (entry != nullptr) value = std::string(entry->value, entry->bytes);
    pthread_mutex_unlock(&shared_->mutex);
    return value;
  }

 private:
  static constexpr int kEntries = 64;
  struct Entry {
    char key[64];
    char value[1024];
    size_t bytes;
  };
  struct Shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int count = 0;
    Entry entries[kEntries];
  };
  const Entry* Find(const std::string& key) const {
    for (int i = 0; i < shared_->count; ++i) {
      if (key == shared_->entries[i].key) return &shared_->entries[i];
    }
    return nullptr;
  }

  Shared* shared_;
};

// Starts a process for one rank, which ends with what `rank_main` returns.
inline pid_t Fork(const std::function<int()>& rank_main) {
  const pid_t process = fork();
  SL_CHECK(process >= 0, "fork failed");
  if (process == 0) _exit(rank_main());
  return process;
}

inline int ExitCode(pid_t process) {
  int state = 0;
  SL_CHECK(waitpid(process, &state, 0) == process, "waitpid failed");
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

// Small whole numbers, whose sums are exact in any order.
inline std::vector<float> WholeNumbers(int rank, size_t size) {
  std::vector<float> data(size);
  for (size_t i = 0; i < size; ++i) {
    data[i] = static_cast<float>((rank + 1) * (i % 97));
  }
  return data;
}

inline std::vector<float> SumOfWholeNumbers(int world_size, size_t size) {
  std::vector<float> sum(size, 0);
  for (int rank = 0; rank < world_size; ++rank) {
    const std::vector<float> data = WholeNumbers(rank, size);
    for (size_t i = 0; i < size; ++i) sum[i] += data[i];
  }
  return sum;
}

// Any bits: numbers, both zeros, infinities, and NaNs with and without signal.
// Held as integers, for nothing but a copy keeps them all.
inline std::vector<uint32_t> AnyBits(uint64_t seed, size_t size) {
  std::vector<uint32_t> bits = {0x80000000, 0x00000000, 0x7fc00001, 0xffc12345,
                                0x7f800001, 0xff800000, 0x00000001};
  bits.resize(size);
  Rng rng(seed);
  for (size_t i = 7; i < size; ++i) bits[i] = static_cast<uint32_t>(rng.Next());
  return bits;
}

}  // namespace slackline
