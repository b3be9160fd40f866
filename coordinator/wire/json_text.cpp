// SPDX-License-Identifier: Apache-2.0
// Looks first, so that nothing beyond the bounds is ever built.
#include "coordinator/wire/json_text.h"

#include <cstdint>
#include <string>

namespace commensal::wire {
namespace {

using nlohmann::json;

/// A parser's complaint holds a piece of the text.
std::string shown(std::string complaint) {
  constexpr std::size_t kMost = 80;
  complaint = json(std::move(complaint)).dump(-1, ' ', true, json::error_handler_t::replace);
  return complaint.size() <= kMost ? complaint : complaint.substr(0, kMost) + "...";
}

/// Counts what a text holds, without building it, and stops beyond the bounds. Not the parser's own
/// callback: that looks at all elements of a list again for each that ends.
class Count final : public json::json_sax_t {
 public:
  explicit Count(const JsonBounds& bounds) : bounds_(bounds) {}

  bool null() override { return value(); }
  bool boolean(bool /*value*/) override { return value(); }
  bool number_integer(std::int64_t /*value*/) override { return value(); }
  bool number_unsigned(std::uint64_t /*value*/) override { return value(); }
  bool number_float(double /*value*/, const std::string& /*text*/) override { return value(); }
  bool string(std::string& /*value*/) override { return value(); }
  bool binary(json::binary_t& /*value*/) override { return value(); }
  bool key(std::string& /*value*/) override { return true; }
  bool start_object(std::size_t /*elements*/) override { return begin(); }
  bool start_array(std::size_t /*elements*/) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const json::exception& error) override {
    throw BadJson("is not JSON: " + shown(std::string{error.what()}.substr(0, 200)));
  }

 private:
  bool value() {
    if (++values_ > bounds_.values) {
      throw BadJson("has more than " + std::to_string(bounds_.values) + " values");
    }
    return true;
  }
  bool begin() {
    if (depth_++ > bounds_.depth) {
      throw BadJson("nests deeper than " + std::to_string(bounds_.depth));
    }
    return value();
  }
  bool end() {
    --depth_;
    return true;
  }

  const JsonBounds& bounds_;
  std::size_t depth_ = 0;
  std::size_t values_ = 0;
};

}  // namespace

json parse_json(std::string_view text, const JsonBounds& bounds) {
  if (text.size() > bounds.bytes) {
    throw BadJson("has " + std::to_string(text.size()) + " bytes, more than " +
                  std::to_string(bounds.bytes));
  }
  Count count{bounds};
  json::sax_parse(text.begin(), text.end(), &count);
  return json::parse(text.begin(), text.end());
}

std::optional<json> try_parse_json(std::string_view text, const JsonBounds& bounds) {
  try {
    return parse_json(text, bounds);
  } catch (const BadJson&) {
    return std::nullopt;
  }
}

}  // namespace commensal::wire
