#include "server/coordinator/state/leased_state_store.h"

#include <spdlog/spdlog.h>
#include <time.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/thread_name.h"

namespace slackline {
namespace {

// After a try that etcd has refused at once.
constexpr absl::Duration kRenewalPause = absl::Milliseconds(200);

// As TimeSource::Now(), but it goes on while this host is suspended, as etcd's
// clock does.
absl::Time BootNow() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::UnixEpoch() + absl::DurationFromTimespec(now);
}

}  // namespace

LeasedStateStore::LeasedStateStore(std::unique_ptr<EtcdStateStore> store,
                                   absl::Duration wait_max)
    : store_(std::move(store)),
      wait_max_(wait_max),
      thread_(&LeasedStateStore::KeepAlive, this) {}

LeasedStateStore::~LeasedStateStore() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    leads_until_nanos_->store(0);
    changed_.notify_all();
  }
  thread_.join();
}

absl::Status LeasedStateStore::Commit(const std::vector<StateChange>& changes) {
  return store_->Commit(changes);
}

absl::Status LeasedStateStore::AwaitLead() {
  const absl::Time give_up = time_.Now() + wait_max_;
  MutexLock lock(mutex_);
  while (true) {
    if (absl::IsFailedPrecondition(renewed_)) return renewed_;
    if (BootNow() < leads_until_) return absl::OkStatus();
    const absl::Time now = time_.Now();
    if (now >= give_up) {
      return Annotate(
          absl::UnavailableError(renewed_.message()),
          absl::StrCat("the lease in etcd could not be renewed in time, nor "
                       "within the next ",
                       absl::FormatDuration(wait_max_),
                       ", so another coordinator may lead"));
    }
    (void)lock.WaitUntil(changed_, SteadyDeadline(give_up - now));
  }
}

std::function<bool()> LeasedStateStore::LeadCheck() const {
  return [until = leads_until_nanos_] {
    return absl::ToUnixNanos(BootNow()) < until->load();
  };
}

void LeasedStateStore::KeepAlive() {
  NameThisThread("etcd lease");
  bool is_away = false;
  MutexLock lock(mutex_);
  while (!stopping_) {
    lock.Unlock();
    const absl::Time begin = BootNow();
    const absl::Status renewed = store_->KeepAlive();
    const bool was_away = is_away;
    is_away = absl::IsUnavailable(renewed);
    if (is_away && !was_away) {
      spdlog::warn(
          "coordinator: its lease in etcd is not renewed: {}; this is tried "
          "again, and members are told nothing new until etcd answers",
          std::string(renewed.message()));
    }
    if (was_away && renewed.ok())
      spdlog::info("coordinator: etcd answers again");
    lock.Lock();
    renewed_ = renewed;
    if (renewed.ok()) leads_until_ = begin + store_->lease();
    if (absl::IsFailedPrecondition(renewed)) {
      leads_until_nanos_->store(0);
    } else if (renewed.ok() && !stopping_) {
      leads_until_nanos_->store(absl::ToUnixNanos(leads_until_));
    }
    changed_.notify_all();
    // It does not come back.
    if (absl::IsFailedPrecondition(renewed)) return;
    const auto next = SteadyDeadline(
        renewed.ok() ? begin + store_->keep_alive_every() - BootNow()
                     : kRenewalPause);
    while (!stopping_ && lock.WaitUntil(changed_, next)) {
    }
  }
}

}  // namespace slackline
