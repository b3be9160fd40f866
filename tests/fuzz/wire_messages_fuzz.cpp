// SPDX-License-Identifier: Apache-2.0
// Any bytes as a frame: only BadMessage may be thrown, and what was understood survives the way.
#include "coordinator/wire/messages.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal;

void check(std::string_view frame) {
  wire::Message message;
  try {
    message = wire::decode(frame);
  } catch (const wire::BadMessage& problem) {
    fuzz::require(!problem.code().empty(), "a refusal has a code");
    fuzz::require(problem.what()[0] != '\0', "a refusal has a text");
    return;
  }
  const std::string encoded = wire::encode(message);
  if (encoded.size() > wire::kMaxFrameBytes) return;  // "1e9" is written in more letters
  const wire::Message again = wire::decode(encoded);
  fuzz::require(again.index() == message.index(), "the type survives");
  fuzz::require(wire::encode(again) == encoded, "decode(encode(m)) is m");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check({reinterpret_cast<const char*>(data), size});
  return 0;
}
