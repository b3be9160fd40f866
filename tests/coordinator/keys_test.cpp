// SPDX-License-Identifier: Apache-2.0
// Keys, their folder, the list of those that are allowed, and how a running coordinator follows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/keys/allowed_keys.h"
#include "coordinator/keys/key_folder.h"
#include "coordinator/keys/key_pair.h"
#include "coordinator/keys/key_ring.h"
#include "coordinator/keys/private_file.h"
#include "coordinator/keys/remote_client.h"
#include "tests/coordinator/key_world.h"

namespace commensal::keys::keys_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

unsigned mode_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777U;
}

AllowedKey user(const std::string& name, const Key& key, std::vector<std::string> tenants = {"t"}) {
  return {.name = name,
          .key = key,
          .role = Role::kUser,
          .tenants = std::move(tenants),
          .created_ms = 5,
          .revoked_ms = std::nullopt};
}

TEST(KeyPairTest, APairBelongsTogetherAndNoTwoAreTheSame) {
  const KeyPair one = make_key_pair();
  const KeyPair two = make_key_pair();
  EXPECT_EQ(public_key_of(one.secret), one.public_key);
  EXPECT_NE(one.public_key, one.secret);
  EXPECT_NE(one.secret, two.secret);
  EXPECT_NE(one.public_key, two.public_key);
}

TEST(KeyPairTest, HexadecimalDigitsAreReadAsTheyAreWritten) {
  const Key key = make_key_pair().public_key;
  EXPECT_THAT(key.hex(), SizeIs(64));
  EXPECT_EQ(Key::from_hex(key.hex()), key);
  EXPECT_EQ(parse_public_key(" \t" + key.hex() + "\n"), key);
}

TEST(KeyPairTest, WhatIsNoKeyIsNamed) {
  const std::string good = make_key_pair().public_key.hex();
  for (const std::string& bad : {std::string{}, std::string{"key"}, good.substr(1), good + "0",
                                 "g" + good.substr(1), "-1" + good.substr(2), "+1" + good.substr(2),
                                 "0x" + good.substr(2), good.substr(2) + " 1"}) {
    const std::string problem = problem_of<KeyProblem>([&] { (void)parse_public_key(bad); });
    EXPECT_THAT(problem, AllOf(HasSubstr("not a public key"), HasSubstr(bad))) << bad;
  }
  const std::string huge(100'000, 'x');
  EXPECT_LT(problem_of<KeyProblem>([&] { (void)parse_public_key(huge); }).size(), 200U);
}

class KeyFolderTest : public ::testing::Test {
 protected:
  TestFolder outside_;
  fs::path path_ = outside_.path() / "deep" / "keys";
  KeyFolder folder_{path_};
};

TEST_F(KeyFolderTest, APairIsThisUsersAlone) {
  const Key key = folder_.create("client");
  EXPECT_EQ(mode_of(path_), 0700U);
  EXPECT_EQ(mode_of(folder_.key_file("client")), 0600U);
  EXPECT_EQ(folder_.load("client").public_key, key);
  EXPECT_EQ(public_key_of(folder_.load("client").secret), key);
  EXPECT_EQ(folder_.load_public("client"), key);
  EXPECT_EQ(read_text(folder_.public_file("client")), key.hex() + "\n");
  EXPECT_THAT(read_text(folder_.public_file("client")),
              Not(HasSubstr(folder_.load("client").secret.hex())));
}

TEST_F(KeyFolderTest, ANameInUseIsRefusedAndTheKeyStays) {
  const Key key = folder_.create("client");
  EXPECT_THAT(problem_of<KeyProblem>([&] { folder_.create("client"); }),
              AllOf(HasSubstr("in use"), HasSubstr("client.key")));
  EXPECT_EQ(folder_.load("client").public_key, key);
}

TEST_F(KeyFolderTest, AMissingKeySaysHowToMakeIt) {
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.load("ann"); }),
              AllOf(HasSubstr("no key 'ann'"), HasSubstr("commensal keys create ann")));
  EXPECT_FALSE(fs::exists(path_)) << "looking makes nothing";
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.load_public("coordinator"); }),
              AllOf(HasSubstr("coordinator.pub is missing"), HasSubstr("copy it")));
}

TEST_F(KeyFolderTest, NamesThatLeadElsewhereAreRefused) {
  for (const char* bad : {"", "..", ".hidden", "-x", "a/b", "a b", "k\xc3\xa9y"}) {
    EXPECT_THAT(problem_of<KeyProblem>([&] { folder_.create(bad); }),
                AllOf(HasSubstr("a key's name"), HasSubstr(bad)));
  }
  EXPECT_THAT(problem_of<KeyProblem>([&] { folder_.create(std::string(65, 'a')); }),
              HasSubstr("1 to 64"));
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(KeyFolderTest, AFolderOpenToOthersIsNotUsed) {
  folder_.create("client");
  ASSERT_EQ(chmod(path_.c_str(), 0750), 0);
  const auto expected = AllOf(HasSubstr("key folder is open to other users"), HasSubstr("0750"));
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.load("client"); }), expected);
  EXPECT_THAT(problem_of<KeyProblem>([&] { folder_.create("other"); }), expected);
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.load_public("client"); }), expected);
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.coordinator_pair(); }), expected);
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)AllowedStore{folder_}.read(); }), expected);
}

TEST_F(KeyFolderTest, ASecretThatOthersCouldReadIsNotUsed) {
  folder_.create("client");
  const fs::path file = folder_.key_file("client");
  ASSERT_EQ(chmod(file.c_str(), 0640), 0);
  const std::string problem = problem_of<KeyProblem>([&] { (void)folder_.load("client"); });
  EXPECT_THAT(problem,
              AllOf(HasSubstr("open to other users"), HasSubstr("0640"), HasSubstr("client.key")));
}

TEST_F(KeyFolderTest, APublicKeyMayBeReadByOthersButNotChanged) {
  const Key key = folder_.create("coordinator");
  const fs::path file = folder_.public_file("coordinator");
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  EXPECT_EQ(folder_.load_public("coordinator"), key);
  ASSERT_EQ(chmod(file.c_str(), 0664), 0);
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.load_public("coordinator"); }),
              HasSubstr("0664"));
}

TEST_F(KeyFolderTest, AKeyOfAnotherUserIsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  folder_.create("client");
  const fs::path file = folder_.key_file("client");
  ASSERT_EQ(chown(file.c_str(), 12345, 12345), 0);
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.load("client"); }),
              AllOf(HasSubstr("belongs to another user"), HasSubstr("12345")));
}

TEST_F(KeyFolderTest, LinksAndThingsThatAreNoFilesAreNotFollowed) {
  folder_.create("client");
  const fs::path aside = outside_.path() / "aside";
  fs::rename(folder_.key_file("client"), aside);
  fs::create_symlink(aside, folder_.key_file("client"));
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.load("client"); }),
              HasSubstr("cannot open the key"));
  EXPECT_THAT(problem_of<KeyProblem>([&] { folder_.create("client"); }), HasSubstr("in use"));
  ASSERT_EQ(mkfifo(folder_.key_file("pipe").c_str(), 0600), 0);
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.load("pipe"); }),
              HasSubstr("is not a file"));
}

TEST_F(KeyFolderTest, WhatIsNoKeyIsRefusedWithoutRepeatingIt) {
  folder_.create("client");
  const fs::path file = folder_.key_file("client");
  const json whole = json::parse(read_text(file));
  json other = whole;
  other["secret"] = make_key_pair().secret.hex();
  json cut = whole;
  cut["secret"] = whole["secret"].get<std::string>().substr(2);
  for (const std::string& text : {std::string{}, std::string{"{"}, std::string{"[1]"},
                                  std::string{"{\"public\":1}"}, other.dump(), cut.dump()}) {
    write_text(file, text);
    const std::string problem = problem_of<KeyProblem>([&] { (void)folder_.load("client"); });
    EXPECT_THAT(problem, AllOf(HasSubstr("not a key"), HasSubstr("client.key"))) << text;
    EXPECT_THAT(problem, Not(HasSubstr(cut["secret"].get<std::string>()))) << "a secret is told";
  }
}

TEST_F(KeyFolderTest, TheCoordinatorsPairIsMadeOnce) {
  const KeyPair first = folder_.coordinator_pair();
  EXPECT_EQ(folder_.coordinator_pair().secret, first.secret);
  EXPECT_EQ(folder_.load_public("coordinator"), first.public_key);
}

TEST_F(KeyFolderTest, ADamagedCoordinatorsKeyIsNotReplaced) {
  (void)folder_.coordinator_pair();
  write_text(folder_.key_file("coordinator"), "damaged");
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)folder_.coordinator_pair(); }),
              HasSubstr("not a key"));
  EXPECT_EQ(read_text(folder_.key_file("coordinator")), "damaged");
}

TEST_F(KeyFolderTest, AFailedWriteLeavesWhatWasThere) {
  folder_.prepare();
  const fs::path file = path_ / "file";
  write_private_file(file, "file", "old");
  fs::create_directory(path_ / "target");
  write_text(path_ / "target" / "x", "x");
  // A folder that is not empty cannot be replaced by a file.
  EXPECT_THAT(problem_of<KeyProblem>([&] { write_private_file(path_ / "target", "thing", "new"); }),
              HasSubstr("cannot write the thing"));
  EXPECT_EQ(read_text(file), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator{path_}, fs::directory_iterator{}), 2)
      << "no draft is left";
}

TEST(AllowedKeysTest, RolesAreWords) {
  for (const Role role : {Role::kUser, Role::kOperator, Role::kNode}) {
    EXPECT_EQ(parse_role(to_string(role)), role);
  }
  EXPECT_THAT(problem_of<KeyProblem>([] { (void)parse_role("admin"); }),
              AllOf(HasSubstr("unknown role"), HasSubstr("'admin'")));
}

TEST(AllowedKeysTest, WhatCannotBeAllowedSaysWhy) {
  const Key one = make_key_pair().public_key;
  const Key two = make_key_pair().public_key;
  const AllowedKeys list = with_allowed({}, user("ann", one));
  const auto problem = [&](const AllowedKey& key) {
    return problem_of<KeyProblem>([&] { (void)with_allowed(list, key); });
  };
  EXPECT_THAT(problem(user("ann", two)), HasSubstr("the name is in use: 'ann'"));
  EXPECT_THAT(problem(user("bob", one)), HasSubstr("allowed already, as 'ann'"));
  EXPECT_THAT(problem(user("bob", two, {})), HasSubstr("'bob' has none"));
  EXPECT_THAT(problem(user("bob", two, {""})), HasSubstr("a tenant has a name"));
  EXPECT_THAT(problem(user("../bob", two)), HasSubstr("'../bob'"));
  AllowedKey node = user("n1", two);
  node.role = Role::kNode;
  EXPECT_THAT(problem(node), HasSubstr("only a user's key has tenants"));
  EXPECT_EQ(problem(user("bob", two)), "");
}

TEST(AllowedKeysTest, ARevokedKeyStaysRevokedAndItsNameIsFree) {
  const Key one = make_key_pair().public_key;
  const Key two = make_key_pair().public_key;
  const AllowedKeys revoked = with_revoked(with_allowed({}, user("ann", one)), "ann", 77);
  ASSERT_THAT(revoked, SizeIs(1));
  EXPECT_EQ(revoked[0].revoked_ms, 77);
  EXPECT_FALSE(revoked[0].valid());
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)with_revoked(revoked, "ann", 78); }),
              HasSubstr("no key of this name is allowed: 'ann'"));
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)with_allowed(revoked, user("bob", one)); }),
              HasSubstr("was revoked as 'ann'"));
  EXPECT_THAT(with_allowed(revoked, user("ann", two)), SizeIs(2));
}

class AllowedStoreTest : public ::testing::Test {
 protected:
  void allow(const AllowedKey& key) {
    store_.change([&](AllowedKeys list) { return with_allowed(std::move(list), key); });
  }
  void revoke(const std::string& name) {
    store_.change([&](AllowedKeys list) { return with_revoked(std::move(list), name, 9); });
  }

  TestFolder outside_;
  KeyFolder folder_{outside_.path() / "keys"};
  AllowedStore store_{folder_};
};

TEST_F(AllowedStoreTest, WhatWasWrittenIsRead) {
  EXPECT_THAT(store_.read(), IsEmpty());
  const AllowedKey ann = user("ann", make_key_pair().public_key, {"vision", "K\xc3\xb6ln"});
  AllowedKey boss = user("boss", make_key_pair().public_key, {});
  boss.role = Role::kOperator;
  allow(ann);
  allow(boss);
  revoke("ann");
  AllowedKeys expected{ann, boss};
  expected[0].revoked_ms = 9;
  EXPECT_EQ(store_.read(), expected);
  EXPECT_EQ(mode_of(store_.file()), 0600U);
}

TEST_F(AllowedStoreTest, ARefusedChangeChangesNothing) {
  allow(user("ann", make_key_pair().public_key));
  const std::string before = read_text(store_.file());
  EXPECT_THROW(allow(user("ann", make_key_pair().public_key)), KeyProblem);
  EXPECT_THROW(revoke("bob"), KeyProblem);
  EXPECT_THROW(allow(user("bob", make_key_pair().public_key, {"\xff"})), KeyProblem);
  EXPECT_EQ(read_text(store_.file()), before);
}

TEST_F(AllowedStoreTest, ChangesAtOnceAreAllKept) {
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] {
      for (int j = 0; j < 5; ++j) {
        allow(user("u" + std::to_string(i) + "." + std::to_string(j), make_key_pair().public_key));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(store_.read(), SizeIs(5 * kThreads));
}

TEST_F(AllowedStoreTest, ADamagedListIsRefusedAndKept) {
  allow(user("ann", make_key_pair().public_key));
  const json whole = json::parse(read_text(store_.file()));
  std::vector<std::string> damaged{"", "{}", "[]", read_text(store_.file()).substr(0, 40)};
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, json>>{{"role", "admin"},
                                                 {"tenants", json::array()},
                                                 {"public", "12"},
                                                 {"name", "../x"},
                                                 {"created_ms", "today"},
                                                 {"revoked_ms", "never"}}) {
    json changed = whole;
    changed["keys"][0][field] = value;
    damaged.push_back(changed.dump());
  }
  json twice = whole;
  twice["keys"].push_back(whole["keys"][0]);
  damaged.push_back(twice.dump());
  for (const std::string& text : damaged) {
    write_text(store_.file(), text);
    EXPECT_THAT(problem_of<KeyProblem>([&] { (void)store_.read(); }),
                AllOf(HasSubstr("damaged"), HasSubstr("allowed.json")))
        << text;
    EXPECT_THROW(allow(user("bob", make_key_pair().public_key)), KeyProblem);
    EXPECT_EQ(read_text(store_.file()), text);
  }
}

TEST_F(AllowedStoreTest, AListOfANewerVersionIsNotTouched) {
  folder_.prepare();
  write_text(store_.file(), R"({"v": 2, "keys": []})");
  chmod(store_.file().c_str(), 0600);
  EXPECT_THAT(problem_of<KeyProblem>([&] { (void)store_.read(); }),
              AllOf(HasSubstr("another version"), HasSubstr("has 2")));
}

TEST_F(AllowedStoreTest, ARingFollowsTheList) {
  const Key ann = make_key_pair().public_key;
  const Key bob = make_key_pair().public_key;
  KeyRing ring{store_};
  EXPECT_EQ(ring.find(ann), nullptr);
  ring.refresh();
  EXPECT_EQ(ring.find(ann), nullptr);
  allow(user("ann", ann));
  EXPECT_EQ(ring.find(ann), nullptr) << "not before it looks";
  EXPECT_TRUE(ring.refresh());
  ASSERT_NE(ring.find(ann), nullptr);
  EXPECT_EQ(ring.find(ann)->name, "ann");
  EXPECT_FALSE(ring.refresh());
  allow(user("bob", bob));
  revoke("ann");
  EXPECT_TRUE(ring.refresh());
  EXPECT_EQ(ring.find(ann), nullptr);
  EXPECT_NE(ring.find(bob), nullptr);
  EXPECT_EQ(ring.find(Key{}), nullptr);
}

TEST_F(AllowedStoreTest, ARingAllowsNobodyByAListThatCannotBeUsed) {
  const Key ann = make_key_pair().public_key;
  allow(user("ann", ann));
  KeyRing ring{store_};
  ring.refresh();
  ASSERT_NE(ring.find(ann), nullptr);
  const auto now_bad = [&](const char* why) {
    EXPECT_TRUE(ring.refresh());
    EXPECT_EQ(ring.find(ann), nullptr);
    EXPECT_THAT(ring.problem(), HasSubstr(why));
  };
  ASSERT_EQ(chmod(store_.file().c_str(), 0644), 0);
  now_bad("0644");
  ASSERT_EQ(chmod(store_.file().c_str(), 0600), 0);
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  now_bad("0755");
  ASSERT_EQ(chmod(folder_.path().c_str(), 0700), 0);
  EXPECT_TRUE(ring.refresh());
  EXPECT_NE(ring.find(ann), nullptr);
  EXPECT_THAT(ring.problem(), IsEmpty());
  fs::remove(store_.file());
  EXPECT_TRUE(ring.refresh());
  EXPECT_EQ(ring.find(ann), nullptr);
}

TEST(AddressTest, AnAddressHasHostAndPort) {
  for (const char* good :
       {"tcp://127.0.0.1:7070", "tcp://*:0", "tcp://[::1]:1", "tcp://host:65535"}) {
    EXPECT_EQ(problem_of<KeyProblem>([&] { check_address(good); }), "") << good;
  }
  for (const char* bad :
       {"", "host:1", "tcp://", "tcp://host", "tcp://:1", "tcp://host:", "ipc://a:1",
        "tcp://host:65536", "tcp://host:-1", "tcp://host:1x", "tcp://a/b:1"}) {
    EXPECT_THAT(problem_of<KeyProblem>([&] { check_address(bad); }),
                AllOf(HasSubstr("tcp://HOST:PORT"), HasSubstr("'" + std::string{bad} + "'")));
  }
}

}  // namespace
}  // namespace commensal::keys::keys_test
