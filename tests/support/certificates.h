// Certificates for tests, made by the openssl command.
#pragma once

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tools/cli/process.h"

namespace slackline {

// What a test that needs them says when it is skipped.
inline constexpr char kNoOpenSsl[] = "no openssl command to make certificates";

inline bool HasOpenSsl() { return FindProgram("openssl").ok(); }

// Who signs certificates, and the files of those that he has signed.
class Certificates {
 public:
  // A second one of a test has a name of its own.
  explicit Certificates(const std::string& name = "authority")
      : folder_(name + ".") {
    Make(absl::StrCat("-subj /CN=authority -keyout ", File("ca.key"), " -out ",
                      ca()));
  }

  struct Pair {
    std::string certificate;
    std::string private_key;
  };
  // `name` as "IP:127.0.0.1" or "DNS:localhost".
  Pair Sign(const std::string& file, const std::string& name) const {
    const Pair pair = {File(file + ".pem"), File(file + ".key")};
    Make(absl::StrCat("-subj /CN=", file, " -addext subjectAltName=", name,
                      " -CA ", ca(), " -CAkey ", File("ca.key"), " -keyout ",
                      pair.private_key, " -out ", pair.certificate));
    return pair;
  }
  std::string ca() const { return File("ca.pem"); }

 private:
  std::string File(const std::string& name) const { return folder_.File(name); }
  void Make(const std::string& rest) const {
    const std::string command = absl::StrCat(
        "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt "
        "ec_paramgen_curve:prime256v1 ",
        rest, " 2> ", File("errors"));
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }

  const TempFolder folder_;
};

}  // namespace slackline
