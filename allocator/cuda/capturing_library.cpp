// SPDX-License-Identifier: Apache-2.0
// Looks through the loaded libraries, again after each change.
#include "allocator/cuda/capturing_library.h"

#include <link.h>

#include <algorithm>
#include <array>

#include "allocator/base/mutex.h"

namespace commensal {
namespace {

// How the names of the files begin.
constexpr std::array<std::string_view, 5> kLibraries{
    "xla_cuda_plugin.so", "libtensorflow_cc.so", "libonnxruntime_providers_cuda.so",
    "libonnxruntime_providers_tensorrt.so", "libtensorrt_rtx.so"};

struct Search {
  unsigned long long known = 0;    // changes that were looked at before
  unsigned long long changes = 0;  // libraries loaded and unloaded since the process began
  const char* found = nullptr;
};

// Is called for one library after the other, until it returns something else than 0.
int look(dl_phdr_info* info, std::size_t /*size*/, void* data) {
  auto& search = *static_cast<Search*>(data);
  search.changes = info->dlpi_adds + info->dlpi_subs;
  if (search.changes == search.known) return 1;
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const std::string_view file = path.substr(path.rfind('/') + 1);  // all of it where there is none
  const auto* const name =
      std::find_if(kLibraries.begin(), kLibraries.end(),
                   [&](std::string_view each) { return file.starts_with(each); });
  if (name == kLibraries.end()) return 0;
  search.found = name->data();  // a literal
  return 1;
}

}  // namespace

std::string_view capturing_library() noexcept {
  static Mutex mutex;
  static Search last;
  const MutexLock lock(mutex);
  Search search;
  search.known = last.changes;
  (void)::dl_iterate_phdr(&look, &search);
  if (search.changes != search.known) last = search;
  return last.found == nullptr ? std::string_view{} : last.found;
}

}  // namespace commensal
