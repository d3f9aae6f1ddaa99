// Downloads public data sets: over HTTPS, checked, complete or not at all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace slackline {

// Where distributions keep the certificates that they trust. OpenSSL knows the
// place of the one for which it was built; a wheel brings it to others.
std::vector<std::string> SystemCertificates();

struct FetchOptions {
  struct File {
    std::string name;
    std::string sha256;  // 64 lower-case hexadecimal digits.
  };
  // "https://host/folder/" (or http); tried in this order for each file.
  std::vector<std::string> mirrors;
  std::vector<File> files;
  std::string folder;  // Where they go; created if need be.
  // Whom HTTPS trusts, besides those that OpenSSL was built to trust: files of
  // certificates, of which some may not be there.
  std::vector<std::string> certificates = SystemCertificates();
  // To look up a name and connect, and for silence while data come.
  absl::Duration connect_max = absl::Seconds(5);
  absl::Duration silence_max = absl::Seconds(30);
  // Sentences about what is done; may be empty.
  std::function<void(const std::string&)> say;
};

// The four files of MNIST from its public mirrors.
FetchOptions MnistFetchOptions(const std::string& folder);

// Files that are there already and have the right checksum are kept.
// Unavailable names each mirror that was tried and what was wrong;
// AlreadyExists a file that is in the way: nothing is overwritten. The files
// before the failing one stay.
absl::Status FetchFiles(const FetchOptions& options);

}  // namespace slackline
