#include "common/keys/credentials.h"

#include <sodium.h>

#include "absl/strings/str_cat.h"

namespace slackline {

static_assert(crypto_scalarmult_BYTES == Secret::kBytes &&
              crypto_scalarmult_SCALARBYTES == Secret::kBytes);

PublicKey PublicKeyOf(const Secret& secret) {
  PublicKey key;
  // Fails for no secret: the base point is of large order.
  (void)crypto_scalarmult_base(key.data(), secret.bytes().data());
  return key;
}

Secret JobSecret(const Secret& user, const std::string& job) {
  return user.Derive(absl::StrCat("slackline job ", job));
}

Credentials CredentialsOf(const Secret& job, Role role) {
  const auto secret_of = [&job](Role of) {
    return job.Derive(absl::StrCat("slackline role ", RoleName(of)));
  };
  Credentials credentials = {.role = role,
                             .own = secret_of(role),
                             .server = PublicKeyOf(secret_of(Role::kServer)),
                             .worker = PublicKeyOf(secret_of(Role::kWorker))};
  if (role == Role::kServer || role == Role::kWorker)
    credentials.ring = job.Derive("slackline ring");
  if (role == Role::kServer) {
    for (const Role of :
         {Role::kServer, Role::kWorker, Role::kOperator, Role::kReader}) {
      credentials.admits[PublicKeyOf(secret_of(of))] = of;
    }
  } else if (role == Role::kWorker) {
    credentials.admits = {{credentials.server, Role::kServer},
                          {credentials.worker, Role::kWorker}};
  }
  return credentials;
}

}  // namespace slackline
