// The regular expressions of byte-level pre-tokenizers, by hand.
//
//   gpt2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   tiktoken  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*
//             |\s*[\r\n]+|\s+(?!\S)|\s+
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tokenizer/unicode.hpp"

namespace ridgeline {

class WordSplitter {
public:
  WordSplitter() : unicode(Unicode::get()) {
    for (std::uint32_t c = 0; c < 128; ++c) ascii[c] = unicode.word_class(c);
  }

  std::size_t find_gpt2_end(std::string_view s, std::size_t at) const {
    if (s[at] == '\'') {
      const std::size_t end = find_contraction(s, at, false);
      if (end) return end;
    }
    const std::size_t start = s[at] == ' ' && at + 1 < s.size() ? at + 1 : at;
    std::size_t next = start;
    const std::uint8_t kind = read(s, next);
    if (!(kind & Unicode::kIsBlank)) return skip(s, next, kind);
    return find_blank_end(s, at);
  }

  std::size_t find_tiktoken_end(std::string_view s, std::size_t at, int digits) const {
    if (s[at] == '\'') {
      const std::size_t end = find_contraction(s, at, true);
      if (end) return end;
    }
    std::size_t next = at;
    const std::uint8_t kind = read(s, next);
    if (kind & Unicode::kIsLetter) return skip(s, next, kind);
    if (kind & Unicode::kIsNumber) {
      for (int k = 1; k < digits && next < s.size(); ++k) {
        std::size_t after = next;
        if (!(read(s, after) & Unicode::kIsNumber)) break;
        next = after;
      }
      return next;
    }
    if (!is_newline(s[at]) && next < s.size()) {
      std::size_t after = next;
      const std::uint8_t second = read(s, after);
      if (second & Unicode::kIsLetter) return skip(s, after, second);
      if (s[at] == ' ' && !second) return skip_newlines(s, skip(s, after, 0));
    }
    if (!kind) return skip_newlines(s, skip(s, next, 0));
    std::size_t newline = 0, end = at;
    while (end < s.size()) {
      std::size_t after = end;
      if (!(read(s, after) & Unicode::kIsBlank)) break;
      if (is_newline(s[end])) newline = after;
      end = after;
    }
    return newline ? newline : find_blank_end(s, at);
  }

private:
  static bool is_newline(char c) { return c == '\r' || c == '\n'; }

  // The class of the character at `at`, which moves behind it.
  std::uint8_t read(std::string_view s, std::size_t &at) const {
    const auto c = std::uint8_t(s[at]);
    if (c < 0x80) return ++at, ascii[c];
    return unicode.word_class(decode(s.data(), at));
  }

  std::size_t skip(std::string_view s, std::size_t at, std::uint8_t kind) const {
    while (at < s.size()) {
      std::size_t next = at;
      if (read(s, next) != kind) break;
      at = next;
    }
    return at;
  }

  static std::size_t skip_newlines(std::string_view s, std::size_t at) {
    while (at < s.size() && is_newline(s[at])) ++at;
    return at;
  }

  // White space belongs together, except the last one before a word.
  std::size_t find_blank_end(std::string_view s, std::size_t at) const {
    std::size_t end = at, last = at;
    while (end < s.size()) {
      std::size_t next = end;
      if (!(read(s, next) & Unicode::kIsBlank)) break;
      last = end;
      end = next;
    }
    return end == s.size() || last == at ? end : last;
  }

  // The end of 's, 't, 'm, 'd, 're, 've or 'll, or 0.
  static std::size_t find_contraction(std::string_view s, std::size_t at, bool any_case) {
    const auto letter = [&](std::size_t k) -> char {
      if (k >= s.size()) return 0;
      return any_case && s[k] >= 'A' && s[k] <= 'Z' ? char(s[k] | 0x20) : s[k];
    };
    const char a = letter(at + 1), b = letter(at + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    if (any_case && a == '\xc5' && b == '\xbf') return at + 3; // a long s
    return 0;
  }

  const Unicode &unicode;
  std::array<std::uint8_t, 128> ascii{};
};

} // namespace ridgeline
