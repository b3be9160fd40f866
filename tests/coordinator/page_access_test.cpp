// SPDX-License-Identifier: Apache-2.0
// Who may see and change what on the page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/page/access.h"
#include "coordinator/page/address.h"

namespace commensal::page::page_access_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

const std::string kToken(64, 'a');

class PageAccessTest : public ::testing::Test {
 protected:
  PageAccessTest() {
    caller_.hosts = {"127.0.0.1:8100"};
    caller_.content_type = "application/json";
    caller_.token = kToken;
  }
  [[nodiscard]] int status(Need need) const { return judge(need, caller_, rules_).status; }
  [[nodiscard]] std::string why(Need need) const { return judge(need, caller_, rules_).reason; }

  AccessRules rules_{names_of("127.0.0.1", 8100, {"Cluster.Example.org:443"}), kToken};
  Caller caller_;
};

TEST_F(PageAccessTest, TheTokenOpensEverything) {
  for (const Need need : {Need::kNothing, Need::kRead, Need::kWrite}) {
    EXPECT_EQ(status(need), 200);
    EXPECT_EQ(why(need), "");
  }
}

TEST_F(PageAccessTest, WithoutTokenOneReadsAsTheSameUserOnly) {
  caller_.token.clear();
  EXPECT_EQ(status(Need::kNothing), 200);
  EXPECT_EQ(status(Need::kRead), 401);
  EXPECT_THAT(why(Need::kRead), HasSubstr("other users need the page's token"));
  caller_.same_user = true;
  EXPECT_EQ(status(Need::kRead), 200);
  EXPECT_EQ(status(Need::kWrite), 401);
  EXPECT_THAT(why(Need::kWrite), HasSubstr("needs the page's token (commensal page)"));
}

TEST_F(PageAccessTest, AWrongTokenOpensNothingForAnybody) {
  for (const std::string& wrong : {std::string(64, 'b'), std::string(63, 'a'), std::string(65, 'a'),
                                   kToken + "\n", std::string("A")}) {
    caller_.token = wrong;
    for (const bool same_user : {false, true}) {
      caller_.same_user = same_user;
      EXPECT_EQ(status(Need::kRead), 401) << wrong;
      EXPECT_EQ(status(Need::kWrite), 401) << wrong;
      EXPECT_THAT(why(Need::kWrite), HasSubstr("not the page's token"));
    }
  }
}

TEST_F(PageAccessTest, NamesOfOthersAreRefusedEvenForFiles) {
  for (const char* host : {"evil.example", "evil.example:8100", "127.0.0.1", "127.0.0.1:81",
                           "127.0.0.1:8100.evil.example", "", "localhost:8100@evil.example"}) {
    caller_.hosts = {host};
    EXPECT_EQ(status(Need::kNothing), 403) << host;
    EXPECT_EQ(status(Need::kRead), 403) << host;
    EXPECT_EQ(status(Need::kWrite), 403) << host;
    if (*host != '\0') {
      EXPECT_THAT(why(Need::kRead), Not(HasSubstr(host))) << "nothing is sent back";
    }
  }
  for (const char* host :
       {"localhost:8100", "LOCALHOST:8100", "[::1]:8100", "cluster.example.org:443"}) {
    caller_.hosts = {host};
    EXPECT_EQ(status(Need::kWrite), 200) << host;
  }
}

TEST_F(PageAccessTest, ARequestHasOneHost) {
  caller_.hosts = {};
  EXPECT_EQ(status(Need::kNothing), 400);
  caller_.hosts = {"127.0.0.1:8100", "127.0.0.1:8100"};
  EXPECT_EQ(status(Need::kNothing), 400);
}

TEST_F(PageAccessTest, OtherOriginsAreRefusedWithTheTokenToo) {
  for (const char* origin : {"http://evil.example", "null", "", "http://127.0.0.1:81",
                             "https://127.0.0.1:8100.evil.example", "127.0.0.1:8100"}) {
    caller_.origin = origin;
    EXPECT_EQ(status(Need::kRead), 403) << origin;
    EXPECT_EQ(status(Need::kWrite), 403) << origin;
  }
  caller_.origin = "http://localhost:8100";
  EXPECT_EQ(status(Need::kWrite), 200);
}

TEST_F(PageAccessTest, OtherSitesAreRefused) {
  for (const char* site : {"cross-site", "same-site", "anything"}) {
    caller_.fetch_site = site;
    EXPECT_EQ(status(Need::kRead), 403) << site;
    EXPECT_EQ(status(Need::kWrite), 403) << site;
    EXPECT_EQ(status(Need::kNothing), 200) << "a link to the page";
  }
  for (const char* site : {"same-origin", "none"}) {
    caller_.fetch_site = site;
    EXPECT_EQ(status(Need::kWrite), 200) << site;
  }
}

TEST_F(PageAccessTest, AFormOfAnotherPageCannotSendJson) {
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                           "", "application/jsonp", "text/plain; application/json"}) {
    caller_.content_type = type;
    EXPECT_EQ(status(Need::kWrite), 415) << type;
    EXPECT_EQ(status(Need::kRead), 200) << type;
  }
  caller_.content_type.reset();
  EXPECT_EQ(status(Need::kWrite), 415);
  for (const char* type : {"application/json; charset=utf-8", "Application/JSON"}) {
    caller_.content_type = type;
    EXPECT_EQ(status(Need::kWrite), 200) << type;
  }
  caller_.encoded = true;
  EXPECT_EQ(status(Need::kWrite), 415) << "nothing is unpacked";
}

TEST(PageNamesTest, APageForEverybodyIsKnownByWhatWasSaid) {
  EXPECT_THAT(names_of("0.0.0.0", 80, {}), ::testing::ElementsAre("0.0.0.0:80"));
  EXPECT_THAT(names_of("::1", 80, {}), IsSupersetOf({"[::1]:80", "127.0.0.1:80", "localhost:80"}));
  EXPECT_THAT(names_of("10.0.0.7", 80, {"Head:80"}),
              ::testing::ElementsAre("10.0.0.7:80", "head:80"));
}

struct Written {
  const char* text;
  Address address;
};

TEST(PageAddressTest, ReadsWhatItWrites) {
  for (const auto& [text, address] :
       {Written{"127.0.0.1:0", {"127.0.0.1", 0}}, Written{"localhost:65535", {"localhost", 65535}},
        Written{"[::1]:8100", {"::1", 8100}}, Written{"0.0.0.0:1", {"0.0.0.0", 1}},
        Written{"head-1.example.org:80", {"head-1.example.org", 80}}}) {
    EXPECT_EQ(parse_address(text), address) << text;
    EXPECT_EQ(to_string(address), text);
  }
}

TEST(PageAddressTest, RefusesAndNamesTheRest) {
  for (const char* text :
       {"", "8100", ":8100", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
        "127.0.0.1:8100x", "127.0.0.1: 80", "::1:8100", "[::1]", "[:80", "[127.0.0.1]:80", "a b:80",
        "a\r\nX: y:80", "http://a:80", "host/:80"}) {
    try {
      (void)parse_address(text);
      ADD_FAILURE() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"" + std::string{text} + "\""));
    }
  }
}

TEST(PageAddressTest, KnowsWhatOnlyThisMachineReaches) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) {
    EXPECT_TRUE(is_loopback({host, 1})) << host;
  }
  for (const char* host : {"0.0.0.0", "10.0.0.1", "::", "example.org", "128.0.0.1"}) {
    EXPECT_FALSE(is_loopback({host, 1})) << host;
  }
}

}  // namespace
}  // namespace commensal::page::page_access_test
