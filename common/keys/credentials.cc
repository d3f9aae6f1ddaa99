#include "common/keys/credentials.h"

#include <sodium.h>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

static_assert(crypto_scalarmult_BYTES == Secret::kBytes &&
              crypto_scalarmult_SCALARBYTES == Secret::kBytes);

namespace {

Secret SecretOf(const Secret& job, const KeyHolder& holder) {
  if (!holder.rank.has_value())
    return job.Derive(absl::StrCat("slackline role ", RoleName(holder.role)));
  return job.Derive(
      absl::StrCat("slackline worker ", static_cast<int32_t>(*holder.rank)));
}

Secret DoorOf(const Secret& ring) { return ring.Derive("slackline door"); }

}  // namespace

PublicKey PublicKeyOf(const Secret& secret) {
  PublicKey key;
  // Fails for no secret: the base point is of large order.
  (void)crypto_scalarmult_base(key.data(), secret.bytes().data());
  return key;
}

Secret JobSecret(const Secret& user, const std::string& job) {
  return user.Derive(absl::StrCat("slackline job ", job));
}

const Secret& Credentials::ToListen() const { return ToConnect(holder.role); }

const Secret& Credentials::ToConnect(Role listener) const {
  // Servers are themselves to everybody.
  if (listener != Role::kWorker || holder.role != Role::kWorker) return own;
  return *door;
}

PublicKey Credentials::ListenerKey(Role listener) const {
  if (listener != Role::kWorker) return server;
  SL_CHECK(door.has_value(), "who connects to workers is a worker or a server");
  return PublicKeyOf(*door);
}

Credentials CredentialsOf(const Secret& job, const KeyHolder& holder,
                          int workers) {
  const Secret own = SecretOf(job, holder);
  const PublicKey server = PublicKeyOf(SecretOf(job, Role::kServer));
  const Secret ring = job.Derive("slackline ring");
  switch (holder.role) {
    case Role::kServer:
      return {.holder = holder,
              .own = own,
              .server = server,
              .ring = ring,
              .door = DoorOf(ring),
              .job = job,
              .workers = workers};
    case Role::kWorker:
      return WorkerCredentials(holder, own, server, ring);
    case Role::kOperator:
    case Role::kReader:
      break;
  }
  return {.holder = holder, .own = own, .server = server};
}

Credentials WorkerCredentials(const KeyHolder& holder, const Secret& own,
                              const PublicKey& server, const Secret& ring) {
  return {.holder = holder,
          .own = own,
          .server = server,
          .ring = ring,
          .door = DoorOf(ring)};
}

Admission::Admission(const Credentials& credentials)
    : job_(credentials.job), workers_(credentials.workers) {
  if (job_.has_value()) {
    for (const Role role :
         {Role::kServer, Role::kWorker, Role::kOperator, Role::kReader}) {
      admits_.emplace(PublicKeyOf(SecretOf(*job_, role)), role);
    }
  } else if (credentials.door.has_value()) {
    admits_.emplace(credentials.server, Role::kServer);
    admits_.emplace(PublicKeyOf(*credentials.door), Role::kWorker);
  }
}

std::optional<KeyHolder> Admission::HolderOf(const PublicKey& key) {
  auto found = admits_.find(key);
  while (found == admits_.end() && job_.has_value() && made_ < workers_) {
    const KeyHolder worker(Role::kWorker, Rank{made_++});
    const auto made =
        admits_.emplace(PublicKeyOf(SecretOf(*job_, worker)), worker);
    if (made.first->first == key) found = made.first;
  }
  if (found == admits_.end()) return std::nullopt;
  return found->second;
}

}  // namespace slackline
