// Goal: by https an etcd is spoken to that can prove who it is, and no other;
// and whoever is refused hears why, and what mends it.
// Method: a real etcd, and certificates that are made here; skipped aloud
// without either.
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/etcd_client.h"
#include "server/coordinator/state/etcd_state_store.h"
#include "tests/support/certificates.h"
#include "tests/support/etcd.h"
#include "tests/support/must.h"

namespace slackline::etcd_tls_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

// It asks its clients for certificates.
class EtcdTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string program = EtcdProgram();
    if (program.empty()) GTEST_SKIP() << kNoEtcd;
    if (!HasOpenSsl()) GTEST_SKIP() << kNoOpenSsl;
    certificates_.emplace();
    const auto etcd = certificates_->Sign("etcd", "IP:127.0.0.1");
    const auto server = certificates_->Sign("server", "DNS:any");
    etcd_.emplace(program,
                  Etcd::Tls{.certificate = etcd.certificate,
                            .private_key = etcd.private_key,
                            .client_ca = certificates_->ca()},
                  EtcdClient::Options{.endpoints = {},
                                      .ca = certificates_->ca(),
                                      .certificate = server.certificate,
                                      .private_key = server.private_key});
    etcd_->Start();
  }

  // What a call of such a client ends with.
  static std::string ErrorOf(EtcdClient::Options options) {
    options.timeout = absl::Milliseconds(800);
    const auto client = EtcdClient::Create(options);
    if (!client.ok()) return client.status().ToString();
    const absl::Status status = (*client)->Get("key").status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    return status.ToString();
  }

  std::optional<Certificates> certificates_;
  std::optional<Etcd> etcd_;
};

TEST_F(EtcdTlsTest, AStateIsKeptAndFound) {
  const EtcdStateStore::Options options = {.etcd = etcd_->client(),
                                           .prefix = "/slackline/digits",
                                           .endpoint = "tcp://127.0.0.1:4000",
                                           .lease = absl::Minutes(1)};
  {
    const auto store = Must(EtcdStateStore::Create(options));
    Must(store->Commit({{.key = "view", .value = "7"}}));
    Must(store->KeepAlive());
  }
  EXPECT_EQ(Must(EtcdStateStore::Open(options))->state().at("view"), "7");
}

TEST_F(EtcdTlsTest, AnEtcdThatAnotherHasSignedIsToldNothing) {
  const Certificates others("others");
  EtcdClient::Options options = etcd_->client();
  options.ca = others.ca();
  EXPECT_THAT(ErrorOf(options),
              AllOf(HasSubstr(etcd_->url()),
                    HasSubstr("its certificate is not to be trusted"),
                    HasSubstr("coordinator { etcd { ca } } has to be of those "
                              "who have signed it")));
}

TEST_F(EtcdTlsTest, ACertificateIsOfItsHost) {
  EtcdClient::Options options = etcd_->client();
  options.endpoints = {
      absl::StrReplaceAll(etcd_->url(), {{"127.0.0.1", "localhost"}})};
  EXPECT_THAT(ErrorOf(options),
              AllOf(HasSubstr("its certificate is not to be trusted"),
                    HasSubstr("to name the host of the endpoint")));
}

TEST_F(EtcdTlsTest, WhoHasNoCertificateIsToldToNameOne) {
  EtcdClient::Options options = etcd_->client();
  options.certificate = "";
  options.private_key = "";
  EXPECT_THAT(
      ErrorOf(options),
      AllOf(HasSubstr("it seems to ask for a certificate (--client-cert-auth)"),
            HasSubstr("certificate, private_key")));
}

TEST_F(EtcdTlsTest, WhoseCertificateAnotherHasSignedIsRefused) {
  const Certificates others("others");
  const auto stranger = others.Sign("server", "DNS:any");
  EtcdClient::Options options = etcd_->client();
  options.certificate = stranger.certificate;
  options.private_key = stranger.private_key;
  EXPECT_THAT(ErrorOf(options),
              HasSubstr("it seems to refuse the certificate of "));
}

TEST_F(EtcdTlsTest, FilesThatCannotBeUsedAreNamed) {
  EtcdClient::Options options = etcd_->client();
  options.ca = "/nowhere/ca.pem";
  EXPECT_THAT(ErrorOf(options), HasSubstr("coordinator { etcd { ca } }: "
                                          "/nowhere/ca.pem: No such file"));
  options = etcd_->client();
  options.ca = options.private_key;
  EXPECT_THAT(ErrorOf(options), HasSubstr("coordinator { etcd { ca } }: "));
  options = etcd_->client();
  options.private_key = options.certificate;
  EXPECT_THAT(ErrorOf(options),
              HasSubstr("coordinator { etcd { certificate, private_key } }: "));
}

TEST_F(EtcdTlsTest, ByHttpItIsNotReached) {
  EXPECT_THAT(ErrorOf({.endpoints = {absl::StrReplaceAll(
                           etcd_->url(), {{"https", "http"}})}}),
              HasSubstr("http://127.0.0.1:"));
}

}  // namespace slackline::etcd_tls_test
