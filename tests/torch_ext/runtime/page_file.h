// SPDX-License-Identifier: Apache-2.0
// A test's own descriptor of a page whose file is in our own table of descriptors.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "allocator/host/own_descriptors.h"
#include "coordinator/wire/handover.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal {

inline wire::UniqueFd file_of(const OwnPage& page) {
  const int thread = own_descriptors::run([] { return ::gettid(); });
  const std::string path =
      "/proc/self/task/" + std::to_string(thread) + "/fd/" + std::to_string(page.fd());
  return wire::UniqueFd{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
}

}  // namespace commensal
