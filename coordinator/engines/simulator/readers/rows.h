// SPDX-License-Identifier: Apache-2.0
// Rows of a CSV file with named columns; what is wrong is named by file, line, column and value.
#pragma once

#include <libfccp/csv.h>

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace commensal::simulator {

/// A row, or the whole file, that cannot be read.
class BadTrace : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One value of a row. Every conversion throws BadTrace.
class Field {
 public:
  Field(std::string_view file, std::uint64_t line, std::string_view column, std::string_view text)
      : file_(file), line_(line), column_(column), text_(text) {}

  [[nodiscard]] std::string_view text() const noexcept { return text_; }
  /// A finite number.
  [[nodiscard]] double number() const;
  /// A number that is not negative.
  [[nodiscard]] double positive_or_zero() const;
  /// A whole number of at least `least`.
  [[nodiscard]] std::int32_t count(std::int32_t least) const;
  [[noreturn]] void fail(std::string_view what) const;

 private:
  std::string_view file_;
  std::uint64_t line_;
  std::string_view column_;
  std::string_view text_;
};

/// Returns the texts between bars, as in v100|t4; without empty ones.
[[nodiscard]] std::vector<std::string> between_bars(std::string_view text);

/// Names the row that libfccp could not take apart.
[[nodiscard]] BadTrace bad_row(std::string_view file, std::uint64_t line,
                               const io::error::base& error);

/// Reads a file row by row by libfccp. Columns may stand in any order; others are passed over.
template <unsigned kColumns>
class Rows {
 public:
  /// Columns from number `optional` on may be missing: their text is empty then.
  /// @throws BadTrace if the file cannot be opened, or lacks another column.
  Rows(std::string file, std::array<std::string_view, kColumns> columns,
       std::size_t optional = kColumns)
      : file_(std::move(file)), columns_(columns), optional_(optional) {
    try {
      reader_ = std::make_unique<Reader>(file_);
      read_header(std::make_index_sequence<kColumns>{});
    } catch (const io::error::base& error) {
      throw BadTrace(error.what());
    }
  }

  /// Reads the next row; false at the end of the file.
  /// @throws BadTrace for a row with too few or too many values; the next call goes on behind it.
  bool next() {
    try {
      return read_row(std::make_index_sequence<kColumns>{});
    } catch (const io::error::base& error) {
      throw bad_row(file_, reader_->get_file_line(), error);
    }
  }

  [[nodiscard]] Field operator[](std::size_t column) const {
    const char* const text = values_[column];
    return part(column, text == nullptr ? std::string_view{} : std::string_view{text});
  }

  /// A part of a column's text.
  [[nodiscard]] Field part(std::size_t column, std::string_view text) const {
    return {file_, reader_->get_file_line(), columns_[column], text};
  }

 private:
  using Reader =
      io::CSVReader<kColumns, io::trim_chars<' ', '\t'>, io::double_quote_escape<',', '"'>,
                    io::throw_on_overflow, io::empty_line_comment>;

  template <std::size_t... I>
  void read_header(std::index_sequence<I...> /*columns*/) {
    reader_->read_header(io::ignore_extra_column | io::ignore_missing_column,
                         std::string(columns_[I])...);
    for (std::size_t column = 0; column < optional_; ++column) {
      if (reader_->has_column(std::string(columns_[column]))) continue;
      throw BadTrace(file_ + ": no column " + std::string(columns_[column]));
    }
  }

  template <std::size_t... I>
  bool read_row(std::index_sequence<I...> /*columns*/) {
    return reader_->read_row(values_[I]...);
  }

  std::string file_;
  std::array<std::string_view, kColumns> columns_;
  std::size_t optional_;
  std::array<char*, kColumns> values_{};
  std::unique_ptr<Reader> reader_;
};

}  // namespace commensal::simulator
