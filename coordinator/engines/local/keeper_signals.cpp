// SPDX-License-Identifier: Apache-2.0
// signalfd.
#include "coordinator/engines/local/keeper_signals.h"

#include <signal.h>
#include <sys/signalfd.h>

#include "coordinator/engines/local/system_failure.h"

namespace commensal::cluster::local {
wire::UniqueFd take_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&set, number);
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) fail("cannot block signals");
  wire::UniqueFd fd{::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)};
  if (!fd) fail("cannot make a descriptor for signals");
  return fd;
}

}  // namespace commensal::cluster::local
