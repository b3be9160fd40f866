// SPDX-License-Identifier: Apache-2.0
// Microseconds from a question to the coordinator's answer, on one line that stays open, as a job
// has it, and with a line for each question, as the command line asks. One JSON object.
//
//   message_benchmark SOCKET COUNT PAUSE_MS
#include <chrono>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "coordinator/wire/control_client.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/paths.h"

namespace commensal::wire {
namespace {

constexpr int kTimeoutMs = 5000;

/// Asks again and again, with a pause before each question; an idle coordinator sleeps meanwhile.
template <typename Ask>
std::vector<double> ask_often(int count, std::chrono::milliseconds pause, Ask&& ask) {
  std::vector<double> microseconds;
  for (int i = 0; i < count; ++i) {
    std::this_thread::sleep_for(pause);
    const auto begin = std::chrono::steady_clock::now();
    const std::string answer = ask();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (!std::holds_alternative<StatusReply>(decode(answer))) {
      throw std::runtime_error("not the answer that was asked for: " + answer.substr(0, 200));
    }
    microseconds.push_back(took.count());
  }
  return microseconds;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 4) {
    throw std::runtime_error("usage: message_benchmark SOCKET COUNT PAUSE_MS");
  }
  const std::string frame = encode(StatusRequest{});
  const int count = std::stoi(arguments[2]);
  const std::chrono::milliseconds pause{std::stoi(arguments[3])};

  zmq::context_t context{1};
  zmq::socket_t line{context, zmq::socket_type::dealer};
  line.set(zmq::sockopt::linger, 0);
  line.set(zmq::sockopt::sndtimeo, kTimeoutMs);
  line.set(zmq::sockopt::rcvtimeo, kTimeoutMs);
  line.connect(ipc_endpoint(arguments[1]));
  const auto over_line = [&] {
    zmq::message_t reply;
    if (!line.send(zmq::buffer(frame), zmq::send_flags::none) || !line.recv(reply)) {
      throw std::runtime_error("no answer within 5 s");
    }
    return reply.to_string();
  };
  const ControlClient client(arguments[1], std::chrono::milliseconds{kTimeoutMs});
  (void)over_line();  // connects
  nlohmann::json result;
  result["open line"] = ask_often(count, pause, over_line);
  result["a line each"] = ask_often(count, pause, [&] { return client.request_frame(frame); });
  std::cout << result << std::endl;
  return 0;
}

}  // namespace
}  // namespace commensal::wire

int main(int argc, char** argv) {
  try {
    return commensal::wire::run(std::vector<std::string>(argv, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "message_benchmark: " << error.what() << '\n';
    return 1;
  }
}
