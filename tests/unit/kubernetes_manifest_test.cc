// Goal: values become YAML that says what they are, and runs get names that
// their pods can have. Method: tables of cases; what parsers make of whole
// manifests is tried in tests/cluster/kubernetes_test.py.
#include "tools/cli/launch/kubernetes_manifest.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cli/launch/yaml_text.h"

namespace slackline::kubernetes_manifest_test {

using Json = nlohmann::ordered_json;

TEST(YamlTextTest, TextsThatAreSomethingElseStandInQuotes) {
  const struct {
    const char* text;
    const char* yaml;
  } cases[] = {{"servers", "servers"},
               {"batch/v1", "batch/v1"},
               {"a-b_c.d", "a-b_c.d"},
               {"", "\"\""},
               {"yes", "\"yes\""},
               {"No", "\"No\""},
               {"NULL", "\"NULL\""},
               {"1e3", "\"1e3\""},
               {"-a", "\"-a\""},
               {"a: b", "\"a: b\""},
               {"a#b", "\"a#b\""},
               {"\"\\", "\"\\\"\\\\\""},
               {"a\nb", "\"a\\nb\""},
               {"\x01\x7f", "\"\\x01\\x7f\""},
               {"\xc2\x85", "\"\\x85\""},
               {"\xe2\x80\xa8", "\"\\u2028\""},
               {"\xef\xbb\xbf", "\"\\ufeff\""},
               {"\xc3\xa9", "\"\xc3\xa9\""},
               {"\xf0\x9f\x98\x80", "\"\\U0001f600\""}};
  for (const auto& each : cases) {
    EXPECT_EQ(YamlText(Json(each.text)), absl::StrCat(each.yaml, "\n"))
        << each.text;
  }
}

TEST(YamlTextTest, StructureStandsInLines) {
  const Json value = {{"a", 1},
                      {"words", Json::array({"x", "z"})},
                      {"none", Json::object()},
                      {"list", {{{"k", "v"}, {"on", true}}, {{"k", "w"}}}},
                      {"text", "one\n  two\n\nthree\n"},
                      {"odd", "one\ntwo\n\n"}};
  EXPECT_EQ(YamlText(value),
            "a: 1\n"
            "words: [x, z]\n"
            "none: {}\n"
            "list:\n"
            "  - k: v\n"
            "    \"on\": true\n"
            "  - k: w\n"
            "text: |\n"
            "  one\n"
            "    two\n"
            "\n"
            "  three\n"
            "odd: \"one\\ntwo\\n\\n\"\n");
}

TEST(KubernetesManifestTest, NamesOfRunsBecomeNamesOfJobSets) {
  const struct {
    const char* run;
    const char* name;
  } cases[] = {
      {"mnist-bsp-20260102T030405Z", "mnist-bsp-20260102t030405z"},
      {"My_Job.v2-ssp-3-20260102T030405Z", "my-job-v2-ssp-3-20260102t030405z"},
      {"9-bsp-20260102T030405Z", "job-9-bsp-20260102t030405z"},
      {"a-very-long-name-of-a-job-that-has-no-end-bsp-20260102T030405Z",
       "a-very-long-name-of-a-j-20260102t030405z"},
      {"...", "job"},
      {"a--__--b", "a-b"},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(JobSetName(each.run), each.name);
    EXPECT_LE(JobSetName(each.run).size(), kJobSetNameMax);
  }
}

TEST(KubernetesManifestTest, GivenHealthAndTimesStay) {
  config::ClusterConfig given;
  given.add_server()->set_count(2);
  given.add_worker()->set_count(3);
  given.add_worker();
  EXPECT_THAT(KubernetesFields(given, "n"),
              ::testing::ElementsAre("coordinator.host=n-servers-0-0.n",
                                     "server[0].host=n-servers-0-{index}.n",
                                     "worker[0].host=n-workers-0-{index}.n",
                                     "worker[1].host=n-workers-1-0-{index}.n",
                                     "health.port=8080", "health.host=0.0.0.0",
                                     "limits.start_timeout_ms=600000"));
  given.mutable_health()->set_port(9);
  given.mutable_health()->set_host("::");
  given.mutable_limits()->set_start_timeout_ms(1000);
  EXPECT_EQ(KubernetesFields(given, "n").size(), 4);
}

}  // namespace slackline::kubernetes_manifest_test
