// SPDX-License-Identifier: Apache-2.0
// Many nodes that report to a cluster's coordinator each second, as `commensald --coordinator`
// does, from one process: a connection and a key each. One JSON object.
//
//   node_load prepare KEYS NODES           makes their keys, and allows them in the key folder
//   node_load run KEYS ADDRESS SECONDS [WARM]
//                                          reports until then; says how it went. Before that each
//                                          reports so often (default: 0) as fast as it is answered
//
// KEYS is the coordinator's key folder. The nodes' own pairs lie beside it, in KEYS.nodes.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "coordinator/keys/allowed_keys.h"
#include "coordinator/keys/key_folder.h"
#include "coordinator/keys/remote_client.h"
#include "coordinator/wire/messages.h"

namespace commensal::keys {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;
using namespace std::chrono_literals;

constexpr rlim_t kBesideSockets = 256;

std::string name_of(std::size_t node) { return "node-" + std::to_string(node); }

std::filesystem::path pairs_beside(const std::filesystem::path& folder) {
  return folder.native() + ".nodes";
}

void prepare(const std::filesystem::path& folder, std::size_t count) {
  json secrets = json::array();
  AllowedStore{KeyFolder{folder}}.change([&](AllowedKeys allowed) {
    for (std::size_t node = 0; node < count; ++node) {
      const KeyPair pair = make_key_pair();
      secrets.push_back(pair.secret.hex());
      AllowedKey& key = allowed.emplace_back();
      key.name = name_of(node);
      key.key = pair.public_key;
      key.role = Role::kNode;
    }
    return allowed;
  });
  std::ofstream{pairs_beside(folder)} << secrets;
  std::cout << json{{"nodes", count}} << '\n';
}

/// As the status of a node with a GPU and a job is told.
json report_of(std::size_t node, std::size_t second) {
  const json gate{{"state", "open"}, {"share", 1.0}, {"reason", "in a gap"}};
  const json job{{"id", "job-" + std::to_string(node) + ".1"},
                 {"name", "train"},
                 {"tenant", "vision"},
                 {"class", "opportunistic"},
                 {"memory", {{"device_bytes", 5ULL << 30U}}},
                 {"gate", gate},
                 {"step", {{"number", second}, {"median_seconds", 0.1}}},
                 {"slowdown", 0.01}};
  const json device{{"id", "GPU-" + std::to_string(node)},
                    {"type", "gpu"},
                    {"name", "a card"},
                    {"capacity_bytes", 80ULL << 30U},
                    {"granted_bytes", 5ULL << 30U}};
  return {{"cores", 64.0},
          {"memory_mib", 512 << 10},
          {"devices", {device}},
          {"jobs", {job}},
          {"jobs_left_out", 0}};
}

/// One socket a node needs a descriptor or two. @return how many nodes there is room for.
std::size_t raise_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("getrlimit fails");
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  return (std::max(limit.rlim_cur, kBesideSockets) - kBesideSockets) / 2;
}

struct Node {
  zmq::socket_t socket;
  std::size_t sent = 0;
  std::size_t answered = 0;
  std::size_t refused = 0;
  std::uint64_t beat = 0;
  std::string run = {};      // of the coordinator
  std::uint64_t number = 0;  // of the list of placements that it knows
};

void take_answers(Node& node) {
  zmq::message_t part;
  while (node.socket.recv(part, zmq::recv_flags::dontwait)) {
    const json answer = json::parse(part.to_string(), nullptr, false);
    const bool taken = answer.is_object() && answer.value("type", json{}) == "heartbeat";
    ++(taken ? node.answered : node.refused);
    const json placements = taken ? answer.value("placements", json{}) : json{};
    if (!placements.is_object()) continue;
    node.run = placements.at("run");
    node.number = placements.at("number");
  }
}

std::string heartbeat(Node& node, std::size_t number, std::size_t second) {
  const json placements{{"beat", ++node.beat}, {"run", node.run}, {"number", node.number}};
  const json message{{"v", wire::kProtocolVersion},
                     {"type", "heartbeat"},
                     {"report", report_of(number, second)},
                     {"placements", placements}};
  return message.dump();
}

/// Each reports so often, a few at a time, until all have been answered.
void warm_up(std::vector<Node>& nodes, std::size_t reports) {
  constexpr std::size_t kUnderWay = 8;  // fewer than the coordinator lets wait
  for (std::size_t done = 0; done < nodes.size();) {
    done = 0;
    bool rests = true;
    for (std::size_t number = 0; number < nodes.size(); ++number) {
      Node& node = nodes[number];
      take_answers(node);
      const std::size_t heard = node.answered + node.refused;
      done += heard >= reports ? 1 : 0;
      if (node.sent >= reports || node.sent - heard >= kUnderWay) continue;
      if (!node.socket.send(zmq::buffer(heartbeat(node, number, 0)), zmq::send_flags::dontwait))
        continue;
      ++node.sent;
      rests = false;
    }
    if (rests) std::this_thread::sleep_for(1ms);
  }
}

void run(const std::filesystem::path& folder, const std::string& address, int seconds,
         std::size_t warm) {
  std::ifstream file{pairs_beside(folder)};
  const json secrets = json::parse(file);
  if (const std::size_t room = raise_descriptors(); room < secrets.size()) {
    throw std::runtime_error("descriptors for " + std::to_string(room) + " of " +
                             std::to_string(secrets.size()) + " nodes only (ulimit -Hn)");
  }
  const Key server = KeyFolder{folder}.coordinator_pair().public_key;
  zmq::context_t context{1};
  context.set(zmq::ctxopt::max_sockets, static_cast<int>(secrets.size()) + 16);
  std::vector<Node> nodes;
  nodes.reserve(secrets.size());
  for (const json& secret : secrets) {
    KeyPair own;
    own.secret = Key::from_hex(secret.get<std::string>());
    own.public_key = public_key_of(own.secret);
    Node& node = nodes.emplace_back(Node{zmq::socket_t{context, zmq::socket_type::dealer}});
    use_keys(node.socket, own, server);
    node.socket.set(zmq::sockopt::linger, 0);
    node.socket.connect(address);
  }
  warm_up(nodes, warm);
  for (Node& node : nodes) node.sent = node.answered = 0;  // those are not counted
  std::cout << "connected" << std::endl;                   // whoever waits for it reads it now
  const Clock::time_point begin = Clock::now();
  double behind = 0;  // most that a report was later than its second
  for (int second = 0; second < seconds; ++second) {
    for (std::size_t number = 0; number < nodes.size(); ++number) {
      // Each at its own time within the second, as independent nodes do.
      const auto due = begin + second * 1s + number * 1s / nodes.size();
      std::this_thread::sleep_until(due);
      const std::chrono::duration<double> late = Clock::now() - due;
      behind = std::max(behind, late.count());
      Node& node = nodes[number];
      take_answers(node);
      const std::string frame = heartbeat(node, number, static_cast<std::size_t>(second));
      if (node.socket.send(zmq::buffer(frame), zmq::send_flags::dontwait)) ++node.sent;
    }
  }
  std::this_thread::sleep_for(2s);
  json told{{"nodes", nodes.size()}, {"seconds", seconds}, {"most_behind_s", behind}};
  std::size_t sent = 0;
  std::size_t answered = 0;
  std::size_t refused = 0;
  std::size_t silent = 0;
  for (Node& node : nodes) {
    take_answers(node);
    sent += node.sent;
    answered += node.answered;
    refused += node.refused;
    if (node.answered == 0) ++silent;
  }
  told.update({{"sent", sent}, {"answered", answered}, {"refused", refused}, {"unheard", silent}});
  std::cout << told << '\n';
}

int main_of(const std::vector<std::string>& arguments) {
  if (arguments.size() == 4 && arguments[1] == "prepare") {
    prepare(arguments[2], std::stoul(arguments[3]));
  } else if ((arguments.size() == 5 || arguments.size() == 6) && arguments[1] == "run") {
    run(arguments[2], arguments[3], std::stoi(arguments[4]),
        arguments.size() == 6 ? std::stoul(arguments[5]) : 0);
  } else {
    throw std::runtime_error(
        "usage: node_load prepare KEYS NODES | run KEYS ADDRESS SECONDS [WARM]");
  }
  return 0;
}

}  // namespace
}  // namespace commensal::keys

int main(int count, char** arguments) {
  try {
    return commensal::keys::main_of({arguments, arguments + count});
  } catch (const std::exception& error) {
    std::cerr << "node_load: " << error.what() << '\n';
    return 1;
  }
}
