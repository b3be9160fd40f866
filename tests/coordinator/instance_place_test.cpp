// SPDX-License-Identifier: Apache-2.0
// A coordinator's folder that is removed under it, and sockets that are made again.
#include "coordinator/node/instance_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <zmq.hpp>

#include "coordinator/wire/control_client.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/paths.h"
#include "coordinator/wire/router_socket.h"

namespace commensal::node::instance_place_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class InstancePlaceTest : public ::testing::Test {
 protected:
  InstancePlaceTest() {
    std::string name = (fs::temp_directory_path() / "commensal-place-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    root_ = name;
    fs::create_directory(root_ / "login");
    setenv("XDG_RUNTIME_DIR", (root_ / "login").c_str(), 1);
  }
  ~InstancePlaceTest() override {
    unsetenv("XDG_RUNTIME_DIR");
    fs::remove_all(root_);
    std::error_code ignored;
    fs::remove(wire::lock_path(wire::account_folders().back(), instance_), ignored);
    fs::remove(wire::account_folders().back() / (instance_ + ".made"), ignored);
  }
  fs::path folder(const fs::path& path) const {
    wire::prepare_runtime_dir(path);
    return path;
  }
  fs::path login() const { return folder(root_ / "login/commensal"); }
  /// Makes what stands for the sockets.
  void make(InstancePlace& place, const fs::path& dir) const {
    std::ofstream{dir / (instance_ + ".made")} << "x";
    place.note({dir / (instance_ + ".made")});
  }

  fs::path root_;
  std::string instance_ = "place-" + std::to_string(getpid());
};

TEST_F(InstancePlaceTest, OneOfAnAccountWhateverItsFolder) {
  const InstancePlace first{login(), instance_};
  ASSERT_TRUE(first.held());
  const InstancePlace second{folder(wire::account_folders().back()), instance_};
  EXPECT_FALSE(second.held());
  EXPECT_THAT(second.obstacle(), HasSubstr("already (pid " + std::to_string(getpid()) + ")"));
  const InstancePlace chosen{folder(root_ / "chosen"), instance_};
  EXPECT_TRUE(chosen.held());
}

TEST_F(InstancePlaceTest, TheLockInTheFolderCountsToo) {
  const fs::path chosen = folder(root_ / "chosen");
  const InstanceLock lock{wire::lock_path(chosen, instance_)};  // of another network namespace
  const InstancePlace place{chosen, instance_};
  EXPECT_FALSE(place.held());
  EXPECT_THAT(place.obstacle(), HasSubstr(chosen.native()));
}

TEST_F(InstancePlaceTest, AFolderThatWasRemovedIsMadeAgain) {
  const fs::path dir = login();
  InstancePlace place{dir, instance_};
  make(place, dir);
  EXPECT_TRUE(place.is_whole());
  fs::remove_all(root_ / "login");
  EXPECT_FALSE(place.is_whole());
  fs::create_directory(root_ / "login");
  EXPECT_FALSE(place.is_whole());
  EXPECT_EQ(place.move([&](const fs::path& where) { make(place, where); }), "");
  EXPECT_TRUE(place.is_whole());
  EXPECT_EQ(place.folder(), dir);
  EXPECT_FALSE((InstanceLock{wire::lock_path(dir, instance_)}.held()));
}

TEST_F(InstancePlaceTest, OneSocketThatIsGoneIsMadeAgain) {
  const fs::path dir = login();
  InstancePlace place{dir, instance_};
  make(place, dir);
  fs::remove(dir / (instance_ + ".made"));
  EXPECT_FALSE(place.is_whole());
  EXPECT_EQ(place.move([&](const fs::path& where) { make(place, where); }), "");
  EXPECT_TRUE(place.is_whole());
}

TEST_F(InstancePlaceTest, WhereTheLoginIsGoneAnotherFolderOfTheAccountServes) {
  const fs::path dir = login();
  InstancePlace place{dir, instance_};
  fs::remove_all(root_ / "login");
  EXPECT_EQ(place.move([&](const fs::path& where) { make(place, where); }), "");
  EXPECT_NE(place.folder(), dir);
  EXPECT_TRUE(place.is_whole());
  EXPECT_FALSE(fs::exists(root_ / "login")) << "it is not ours to make";
}

TEST_F(InstancePlaceTest, AChosenFolderIsNotExchanged) {
  const fs::path dir = folder(root_ / "chosen");
  InstancePlace place{dir, instance_};
  fs::remove_all(root_);
  const std::string problem = place.move([&](const fs::path&) { FAIL() << "made somewhere"; });
  EXPECT_THAT(problem, HasSubstr(root_.native() + " is gone"));
  EXPECT_EQ(place.folder(), dir);
}

TEST_F(InstancePlaceTest, AFolderThatAnotherOneHasTakenStaysItsOwn) {
  const fs::path dir = folder(root_ / "chosen");
  InstancePlace place{dir, instance_};
  fs::remove(wire::lock_path(dir, instance_));
  const InstanceLock other{wire::lock_path(dir, instance_)};
  EXPECT_FALSE(place.is_whole());
  EXPECT_THAT(place.move([&](const fs::path&) { FAIL() << "made over another's"; }),
              HasSubstr("has the lock"));
}

TEST_F(InstancePlaceTest, ASocketThatIsBoundAgainKeepsItsConnections) {
  const fs::path dir = folder(root_ / "chosen");
  const fs::path path = wire::control_socket_path(dir, instance_);
  wire::RouterSocket router{wire::ipc_endpoint(path)};
  zmq::context_t context;
  zmq::socket_t before{context, zmq::socket_type::dealer};
  before.set(zmq::sockopt::linger, 0);
  before.set(zmq::sockopt::reconnect_ivl, -1);  // it must live on its first connection
  before.connect(wire::ipc_endpoint(path));
  const auto hears = [&](const std::string& text) {
    std::string peer;
    std::vector<std::string> frames;
    zmq::pollitem_t item{router.handle(), 0, ZMQ_POLLIN, 0};
    return zmq::poll(&item, 1, std::chrono::seconds{60}) > 0 && router.receive(peer, frames) &&
           frames == std::vector{text};
  };
  before.send(zmq::buffer(std::string{"one"}), zmq::send_flags::none);
  ASSERT_TRUE(hears("one"));
  fs::remove_all(dir);
  (void)folder(dir);
  router.bind(wire::ipc_endpoint(path));
  before.send(zmq::buffer(std::string{"two"}), zmq::send_flags::none);
  EXPECT_TRUE(hears("two"));
  zmq::socket_t after{context, zmq::socket_type::dealer};
  after.set(zmq::sockopt::linger, 0);
  after.connect(wire::ipc_endpoint(path));
  after.send(zmq::buffer(std::string{"three"}), zmq::send_flags::none);
  EXPECT_TRUE(hears("three"));
}

}  // namespace
}  // namespace commensal::node::instance_place_test
