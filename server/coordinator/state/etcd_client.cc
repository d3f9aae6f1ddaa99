#include "server/coordinator/state/etcd_client.h"

#include <curl/curl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/keys/private_file.h"
#include "common/shortened.h"
#include "common/status.h"

namespace slackline {
namespace {

using Json = nlohmann::json;
using Entry = EtcdClient::Entry;

constexpr size_t kHeaderBytesMax = 64 << 10;  // Of an answer.
constexpr size_t kAnswerBytesShown = 200;     // Of an answer, in errors.
constexpr size_t kPasswordBytesMax = 1024;
constexpr size_t kTokenBytesMax = 4096;
// A try takes no longer than this part of a call's timeout, so that a silent
// endpoint leaves time for the others.
constexpr int kTriesMin = 4;
// Between two rounds of the endpoints.
constexpr absl::Duration kRetryPause = absl::Milliseconds(100);

std::string Shown(absl::string_view text) {
  return absl::CHexEscape(Shortened(text, kAnswerBytesShown));
}

// ---- What etcd's JSON says: fields that are 0 or empty are left out ---------

// The gateway writes 64 bits as text. nullopt: it is no number.
std::optional<int64_t> IntegerIn(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end()) return 0;
  if (field->is_number_integer()) return field->get<int64_t>();
  int64_t number = 0;
  if (!field->is_string() ||
      !absl::SimpleAtoi(field->get_ref<const std::string&>(), &number)) {
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> BytesIn(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end()) return "";
  std::string bytes;
  if (!field->is_string() ||
      !absl::Base64Unescape(field->get_ref<const std::string&>(), &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

// Of a RangeResponse.
std::optional<std::vector<Entry>> EntriesIn(const Json& range) {
  if (!range.is_object()) return std::nullopt;
  std::vector<Entry> entries;
  const auto kvs = range.find("kvs");
  if (kvs == range.end()) return entries;
  if (!kvs->is_array()) return std::nullopt;
  for (const Json& kv : *kvs) {
    auto key = BytesIn(kv, "key");
    auto value = BytesIn(kv, "value");
    const auto create_revision = IntegerIn(kv, "create_revision");
    const auto mod_revision = IntegerIn(kv, "mod_revision");
    const auto lease = IntegerIn(kv, "lease");
    if (!key || !value || !create_revision || !mod_revision || !lease)
      return std::nullopt;
    entries.push_back({*std::move(key), *std::move(value), *create_revision,
                       *mod_revision, *lease});
  }
  return entries;
}

absl::Status Malformed(absl::string_view path) {
  return absl::InternalError(absl::StrCat(
      "etcd's answer to ", path, " is not what etcd 3.4 and later answer"));
}

// What etcd says instead of an answer.
absl::Status ErrorIn(const Json& answer) {
  // Of a stream it is an object.
  const auto error = answer.find("error");
  const Json& of =
      error != answer.end() && error->is_object() ? *error : answer;
  const auto message = of.find("message");
  std::string text =
      message != of.end() && message->is_string()
          ? Shown(message->get_ref<const std::string&>())
          : Shown(answer.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (absl::StrContains(text, "request is too large")) {
    absl::StrAppend(&text, "; start etcd with a --max-request-bytes of at ",
                    "least 1048576, or leave it at its default");
  } else if (absl::StrContains(text, "space exceeded")) {
    absl::StrAppend(&text,
                    "; compact and defragment etcd, clear its alarm, or "
                    "raise its --quota-backend-bytes");
  }
  auto code = IntegerIn(of, "code").value_or(0);
  if (code == 0) code = IntegerIn(of, "grpc_code").value_or(0);
  switch (static_cast<absl::StatusCode>(code)) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return absl::Status(static_cast<absl::StatusCode>(code), text);
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return absl::InternalError(text);
    default:  // Without a leader, too busy, on its way down, or no etcd.
      return absl::UnavailableError(text);
  }
}

// ---- What is sent -----------------------------------------------------------

Json KeyJson(const std::string& key) {
  return {{"key", absl::Base64Escape(key)}};
}

Json TransactionJson(const EtcdClient::Transaction& transaction) {
  Json compare = Json::array();
  for (const auto& revision : transaction.if_all) {
    Json one = KeyJson(revision.key);
    one["target"] = revision.target;
    one["result"] = "EQUAL";
    one[absl::string_view(revision.target) == "CREATE" ? "create_revision"
                                                       : "mod_revision"] =
        absl::StrCat(revision.revision);
    compare.push_back(std::move(one));
  }
  Json success = Json::array();
  for (const auto& put : transaction.puts) {
    Json one = KeyJson(put.key);
    one["value"] = absl::Base64Escape(put.value);
    if (put.lease != 0) one["lease"] = absl::StrCat(put.lease);
    success.push_back({{"request_put", std::move(one)}});
  }
  for (const auto& removal : transaction.removals) {
    Json one = KeyJson(removal.begin);
    one["range_end"] = absl::Base64Escape(removal.end);
    success.push_back({{"request_delete_range", std::move(one)}});
  }
  Json failure = Json::array();
  for (const std::string& key : transaction.else_get)
    failure.push_back({{"request_range", KeyJson(key)}});
  return {{"compare", std::move(compare)},
          {"success", std::move(success)},
          {"failure", std::move(failure)}};
}

// ---- HTTP -------------------------------------------------------------------

struct Received {
  std::string body;
  size_t header_bytes = 0;
  bool too_long = false;
};

size_t TakeBody(char* bytes, size_t, size_t count, void* to) {
  auto* const received = static_cast<Received*>(to);
  received->too_long =
      count > EtcdClient::kAnswerBytesMax - received->body.size();
  if (received->too_long) return 0;  // Which ends the transfer.
  received->body.append(bytes, count);
  return count;
}

size_t TakeHeader(char*, size_t, size_t count, void* to) {
  auto* const received = static_cast<Received*>(to);
  received->header_bytes += count;
  received->too_long = received->header_bytes > kHeaderBytesMax;
  return received->too_long ? 0 : count;
}

bool IsHttps(absl::string_view url) {
  return absl::StartsWith(url, "https://");
}

// `field` is that of the config.
absl::Status CheckReadable(const char* field, const std::string& path) {
  if (path.empty() || access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("coordinator { etcd { ", field, " } }: ", path, ": ",
                   std::strerror(errno), "; each server reads that file"));
}

// Without the end of its line.
absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  const std::string name =
      absl::StrCat("coordinator { etcd { password_file } }: ", path);
  absl::StatusOr<std::string> text = ReadPrivateFile(
      {.name = name,
       .path = path,
       .bytes_max = kPasswordBytesMax,
       .if_read = "give the user another password if others may have read it "
                  "(etcdctl user passwd)"});
  if (!text.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(text.status().message(), "; each server reads that file"));
  }
  absl::string_view line = absl::StripSuffix(*text, "\n");
  line = absl::StripSuffix(line, "\r");
  if (line.empty() ||
      std::any_of(line.begin(), line.end(), absl::ascii_iscntrl)) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, ": a password in one line is required, and nothing else"));
  }
  return std::string(line);
}

// Another token is to be asked for.
bool IsStale(const absl::Status& error) {
  // Users or roles have changed since a signed token was given, as etcd 3.5 and
  // 3.4 say it.
  return absl::IsUnauthenticated(error) ||
         absl::StrContains(error.message(), "revision of auth store is old") ||
         absl::StrContains(error.message(), "revision in header is old");
}

// What is wrong with an https endpoint, as libcurl says it, and what mends it
// if that is known.
std::string TlsProblem(CURLcode code, const std::string& said,
                       bool has_certificate) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
      return absl::StrCat(
          "its certificate is not to be trusted: ", said,
          "; coordinator { etcd { ca } } has to be of those who have signed "
          "it, and it has to name the host of the endpoint");
    case CURLE_SSL_CACERT_BADFILE:
      return absl::StrCat("coordinator { etcd { ca } }: ", said);
    case CURLE_SSL_CERTPROBLEM:
      return absl::StrCat("coordinator { etcd { certificate, private_key } }: ",
                          said);
    case CURLE_SSL_CONNECT_ERROR:
      if (!absl::StrContains(said, "alert"))
        return absl::StrCat(said, "; see that it listens with https");
      [[fallthrough]];
    // With TLS 1.3 the other end looks at this one's certificate after the
    // handshake: it ends the connection then, mostly with an alert.
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
      return absl::StrCat(
          said, has_certificate
                    ? "; it seems to refuse the certificate of coordinator { "
                      "etcd { certificate } }"
                    : "; it seems to ask for a certificate "
                      "(--client-cert-auth): name one and its key in "
                      "coordinator { etcd { certificate, private_key } }");
    default:
      return said;
  }
}

}  // namespace

struct EtcdClient::Connection {
  Connection() {
    static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
    SL_CHECK(global == CURLE_OK, curl_easy_strerror(global));
    curl = curl_easy_init();
    SL_CHECK(curl != nullptr, "no memory for a connection");
    SetToken("");
  }
  ~Connection() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
  }
  // Of the calls from here on; may be empty.
  void SetToken(const std::string& token) {
    curl_slist_free_all(std::exchange(headers, nullptr));
    headers = curl_slist_append(nullptr, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");  // Waits for no leave.
    if (token.empty()) return;
    headers = curl_slist_append(headers,
                                absl::StrCat("Authorization: ", token).c_str());
  }
  CURL* curl = nullptr;
  curl_slist* headers = nullptr;
};

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Create(
    const Options& options) {
  if (options.endpoints.empty())
    return absl::InvalidArgumentError("etcd: at least one endpoint is needed");
  for (const std::string& endpoint : options.endpoints) {
    if (IsHttps(endpoint) && options.ca.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "etcd endpoint '", Shown(endpoint),
          "': a file with the certificates of those who may have signed its "
          "own is needed"));
    }
    if (!IsHttps(endpoint) && !absl::StartsWith(endpoint, "http://")) {
      return absl::InvalidArgumentError(
          absl::StrCat("etcd endpoint '", Shown(endpoint),
                       "' does not begin with https:// or http://, as in "
                       "'https://10.0.0.5:2379'"));
    }
  }
  SL_RETURN_IF_ERROR(CheckReadable("ca", options.ca));
  SL_RETURN_IF_ERROR(CheckReadable("certificate", options.certificate));
  SL_RETURN_IF_ERROR(CheckReadable("private_key", options.private_key));
  std::string password;
  if (!options.user.empty()) {
    SL_ASSIGN_OR_RETURN(password, ReadPassword(options.password_file));
  }
  return std::unique_ptr<EtcdClient>(new EtcdClient(
      options, std::move(password), std::make_unique<Connection>()));
}

EtcdClient::EtcdClient(Options options, std::string password,
                       std::unique_ptr<Connection> connection)
    : options_(std::move(options)),
      connection_(std::move(connection)),
      password_(std::move(password)) {}

EtcdClient::~EtcdClient() = default;

absl::StatusOr<Json> EtcdClient::Try(const std::string& url,
                                     const std::string& body,
                                     absl::Duration wait_max) {
  CURL* const curl = connection_->curl;
  Received received;
  std::array<char, CURL_ERROR_SIZE> why = {};
  curl_easy_reset(curl);  // Keeps its connections.
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                   static_cast<curl_off_t>(body.size()));
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, connection_->headers);
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION,
                   static_cast<long>(CURL_HTTP_VERSION_1_1));
  // Of all of it, from the name of the host to the last byte.
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                   static_cast<long>(std::max<int64_t>(
                       1, absl::ToInt64Milliseconds(wait_max))));
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROXY, "");  // Nor one of the environment.
  if (IsHttps(url)) {
    curl_easy_setopt(curl, CURLOPT_SSLVERSION,
                     static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    // These alone, and not those that the system trusts.
    curl_easy_setopt(curl, CURLOPT_CAINFO, options_.ca.c_str());
    curl_easy_setopt(curl, CURLOPT_CAPATH, nullptr);
  }
  if (IsHttps(url) && !options_.certificate.empty()) {
    curl_easy_setopt(curl, CURLOPT_SSLCERT, options_.certificate.c_str());
    curl_easy_setopt(curl, CURLOPT_SSLKEY, options_.private_key.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &TakeBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &received);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &TakeHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &received);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why.data());
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  if (received.too_long) {
    return absl::UnavailableError(
        absl::StrCat(url, ": the answer has more than ", kAnswerBytesMax,
                     " bytes, or ", kHeaderBytesMax, " of headers"));
  }
  if (code != CURLE_OK) {
    // As "Couldn't connect to server".
    const std::string said =
        why[0] != '\0' ? absl::StrReplaceAll(Shown(why.data()), {{"\\'", "'"}})
                       : curl_easy_strerror(code);
    return absl::UnavailableError(absl::StrCat(
        url, ": ",
        IsHttps(url) ? TlsProblem(code, said, !options_.certificate.empty())
                     : said));
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  Json answer = Json::parse(received.body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) {
    return absl::UnavailableError(
        absl::StrCat(url, ": answers with HTTP status ", status,
                     " and no JSON object: '", Shown(received.body), "'"));
  }
  if (status != 200 || answer.contains("error"))
    return Annotate(ErrorIn(answer), url);
  return answer;
}

absl::StatusOr<Json> EtcdClient::TryAsUser(const std::string& endpoint,
                                           absl::string_view path,
                                           const std::string& body,
                                           absl::Duration wait_max) {
  const absl::Time give_up = time_.Now() + wait_max;
  if (!options_.user.empty() && token_.empty())
    SL_RETURN_IF_ERROR(Authenticate(endpoint, give_up));
  return Try(absl::StrCat(endpoint, path), body, give_up - time_.Now());
}

absl::Status EtcdClient::Authenticate(const std::string& endpoint,
                                      absl::Time give_up) {
  const absl::StatusOr<std::string> password =
      ReadPassword(options_.password_file);
  absl::Status refused = password.status();
  if (password.ok()) {
    refused = AskToken(endpoint, *password, give_up);
    if (refused.ok()) {
      if (std::exchange(warned_, false))
        spdlog::info("coordinator: the password in {} works",
                     options_.password_file);
      password_ = *password;
      password_worked_ = true;
      return refused;
    }
    if (absl::IsUnavailable(refused)) return refused;
  }
  if (!password.ok() || *password != password_) {
    const absl::Status before = AskToken(endpoint, password_, give_up);
    password_worked_ = password_worked_ || before.ok();
    if (before.ok()) WarnOfPassword(refused);
    if (before.ok() || absl::IsUnavailable(before)) return before;
  }
  if (password.ok() && !password_worked_) return refused;
  WarnOfPassword(refused);
  return absl::UnavailableError(Explained(refused).message());
}

void EtcdClient::WarnOfPassword(const absl::Status& error) {
  if (std::exchange(warned_, true)) return;
  spdlog::warn(
      "coordinator: the password of etcd's user does not work: {}; this is "
      "tried again, and so is the last one that has worked",
      std::string(Explained(error).message()));
}

absl::Status EtcdClient::AskToken(const std::string& endpoint,
                                  const std::string& password,
                                  absl::Time give_up) {
  constexpr char kPath[] = "/v3/auth/authenticate";
  const Json request = {{"name", options_.user}, {"password", password}};
  const absl::StatusOr<Json> answer =
      Try(absl::StrCat(endpoint, kPath),
          request.dump(-1, ' ', false, Json::error_handler_t::replace),
          give_up - time_.Now());
  if (!answer.ok()) return answer.status();
  const auto token = answer->find("token");
  if (token == answer->end() || !token->is_string()) return Malformed(kPath);
  const auto& text = token->get_ref<const std::string&>();
  // It becomes a part of a header.
  if (text.empty() || text.size() > kTokenBytesMax ||
      !std::all_of(text.begin(), text.end(), absl::ascii_isgraph)) {
    return Malformed(kPath);
  }
  SetToken(text);
  return absl::OkStatus();
}

void EtcdClient::SetToken(const std::string& token) {
  token_ = token;
  connection_->SetToken(token);
}

absl::Status EtcdClient::Explained(const absl::Status& error) const {
  const absl::string_view said = error.message();
  std::string mends;
  if (absl::StrContains(said, "authentication failed")) {
    mends = absl::StrCat("etcd has no user '", Shown(options_.user),
                         "', or that has another password than ",
                         options_.password_file, ": see coordinator { etcd { ",
                         "user, password_file } } and etcdctl user list");
  } else if (absl::StrContains(said, "authentication is not enabled")) {
    mends =
        "this etcd has no users: leave out coordinator { etcd { user, "
        "password_file } }, or call etcdctl auth enable";
  } else if (absl::StrContains(said, "user name is empty")) {
    mends =
        "this etcd has users: name the job's with coordinator { etcd { user, "
        "password_file } }";
  } else if (absl::IsPermissionDenied(error)) {
    mends = absl::StrCat(
        "user '", Shown(options_.user),
        "' has to be allowed to read and write all keys below ",
        options_.prefix, "/: etcdctl role grant-permission ROLE --prefix ",
        "readwrite ", options_.prefix, "/, of a role that it has");
  } else {
    return error;
  }
  return absl::Status(error.code(), absl::StrCat(said, "; ", mends));
}

absl::StatusOr<Json> EtcdClient::Call(absl::string_view path,
                                      const Json& request) {
  const std::string body = request.dump();
  const absl::Time deadline = time_.Now() + options_.timeout;
  int renewed = 0;
  for (size_t tried = 1;; ++tried) {
    const absl::Duration left = deadline - time_.Now();
    absl::StatusOr<Json> answer =
        TryAsUser(options_.endpoints[endpoint_], path, body,
                  std::min(left, options_.timeout / kTriesMin));
    if (answer.ok()) return answer;
    // A token is lost when it has not been used for long, or with its endpoint,
    // or with any change of etcd's users.
    const bool stale = !options_.user.empty() && IsStale(answer.status());
    if (stale) {
      SetToken("");
      if (++renewed == 1) continue;
    } else if (!absl::IsUnavailable(answer.status())) {
      return Explained(answer.status());
    }
    endpoint_ = (endpoint_ + 1) % options_.endpoints.size();
    if (deadline - time_.Now() <= kRetryPause) {
      return Annotate(
          absl::UnavailableError(answer.status().message()),
          absl::StrCat(stale ? "etcd has taken no token of its user within "
                             : "etcd has not answered within ",
                       absl::FormatDuration(options_.timeout)));
    }
    if (tried % options_.endpoints.size() == 0) absl::SleepFor(kRetryPause);
  }
}

absl::StatusOr<std::vector<Entry>> EtcdClient::Range(const std::string& begin,
                                                     const std::string& end,
                                                     int64_t count_max) {
  constexpr absl::string_view kPath = "/v3/kv/range";
  Json request = KeyJson(begin);
  if (!end.empty()) request["range_end"] = absl::Base64Escape(end);
  request["limit"] = absl::StrCat(count_max);
  SL_ASSIGN_OR_RETURN(const Json answer, Call(kPath, request));
  auto entries = EntriesIn(answer);
  if (!entries.has_value()) return Malformed(kPath);
  return *std::move(entries);
}

absl::StatusOr<std::optional<Entry>> EtcdClient::Get(const std::string& key) {
  SL_ASSIGN_OR_RETURN(std::vector<Entry> entries, Range(key, "", 1));
  if (entries.empty()) return std::optional<Entry>();
  return std::optional<Entry>(std::move(entries.front()));
}

absl::StatusOr<EtcdClient::TransactionResult> EtcdClient::Transact(
    const Transaction& transaction) {
  constexpr absl::string_view kPath = "/v3/kv/txn";
  SL_ASSIGN_OR_RETURN(const Json answer,
                      Call(kPath, TransactionJson(transaction)));
  TransactionResult result;
  const auto made = answer.find("succeeded");
  if (made != answer.end()) {
    if (!made->is_boolean()) return Malformed(kPath);
    result.made = made->get<bool>();
  }
  const auto header = answer.find("header");
  const auto revision =
      header == answer.end() ? std::nullopt : IntegerIn(*header, "revision");
  if (!revision.has_value()) return Malformed(kPath);
  result.revision = *revision;
  if (result.made || transaction.else_get.empty()) return result;
  const auto responses = answer.find("responses");
  if (responses == answer.end() || !responses->is_array() ||
      responses->size() != transaction.else_get.size()) {
    return Malformed(kPath);
  }
  for (const Json& response : *responses) {
    const auto range = response.find("response_range");
    auto entries = range == response.end() ? std::nullopt : EntriesIn(*range);
    if (!entries.has_value()) return Malformed(kPath);
    result.found.push_back(entries->empty()
                               ? std::nullopt
                               : std::optional(std::move(entries->front())));
  }
  return result;
}

absl::StatusOr<EtcdClient::Lease> EtcdClient::GrantLease(absl::Duration ttl) {
  constexpr absl::string_view kPath = "/v3/lease/grant";
  SL_ASSIGN_OR_RETURN(
      const Json answer,
      Call(kPath, {{"TTL", absl::StrCat(absl::ToInt64Seconds(ttl))}}));
  const int64_t id = IntegerIn(answer, "ID").value_or(0);
  const int64_t seconds = IntegerIn(answer, "TTL").value_or(0);
  if (id == 0 || seconds <= 0) return Malformed(kPath);
  return Lease{.id = id, .ttl = absl::Seconds(seconds)};
}

absl::StatusOr<bool> EtcdClient::KeepAlive(int64_t lease) {
  constexpr absl::string_view kPath = "/v3/lease/keepalive";
  SL_ASSIGN_OR_RETURN(const Json answer,
                      Call(kPath, {{"ID", absl::StrCat(lease)}}));
  const auto result = answer.find("result");
  if (result == answer.end()) return Malformed(kPath);
  const auto seconds = IntegerIn(*result, "TTL");
  if (!seconds.has_value()) return Malformed(kPath);
  return *seconds > 0;
}

absl::Status EtcdClient::Revoke(int64_t lease) {
  return Call("/v3/lease/revoke", {{"ID", absl::StrCat(lease)}}).status();
}

}  // namespace slackline
