// SPDX-License-Identifier: Apache-2.0
// A loaded library with the name of another one.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace commensal {

/// A copy of the C library's mathematics, loaded under a name of the caller's until this ends.
class LibraryNamed {
 public:
  /// @throws std::filesystem::filesystem_error, std::runtime_error.
  explicit LibraryNamed(const std::string& name) {
    const std::filesystem::path folder =
        std::filesystem::path(::testing::TempDir()) / ("library" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    Dl_info info{};
    if (::dladdr(::dlsym(RTLD_DEFAULT, "cos"), &info) == 0) throw std::runtime_error("no libm");
    std::filesystem::copy_file(info.dli_fname, folder / name);
    handle_ = ::dlopen((folder / name).c_str(), RTLD_NOW | RTLD_LOCAL);
    std::filesystem::remove_all(folder);
    if (handle_ == nullptr) throw std::runtime_error(::dlerror());
  }
  ~LibraryNamed() { (void)::dlclose(handle_); }
  LibraryNamed(const LibraryNamed&) = delete;
  LibraryNamed& operator=(const LibraryNamed&) = delete;

 private:
  void* handle_ = nullptr;
};

}  // namespace commensal
