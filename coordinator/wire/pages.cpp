// SPDX-License-Identifier: Apache-2.0
// Checks of the shared-memory pages.
#include "coordinator/wire/pages.h"

#include <cstring>

namespace commensal::wire {

const char* check_page(const void* page, std::size_t mapped, std::uint64_t magic) noexcept {
  if (page == nullptr) return "page is not mapped";
  if (mapped < sizeof(PageHeader)) return "page is smaller than its header";
  PageHeader header;
  std::memcpy(&header, page, sizeof header);
  if (header.magic != magic) return "page has another magic number: not a page of this kind";
  if (header.version != kPageVersion) return "page has another layout version";
  if (header.size > mapped) return "page claims more bytes than are mapped";
  const std::size_t least =
      magic == kJobPageMagic
          ? sizeof(JobPage)
          : (magic == kDevicePageMagic ? sizeof(DevicePage) : sizeof(PageHeader));
  if (header.size < least) return "page is smaller than its layout";
  return "";
}

}  // namespace commensal::wire
