// What normalizers and pre-tokenizers do with characters, as the `tokenizers` library does it (scripts/characters).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ridgeline {

enum class Form { nfc, nfd, nfkc, nfkd };

class Unicode {
public:
  static const Unicode &get(); // built by the first call

  // For the regular expressions of pre-tokenizers.
  static constexpr std::uint8_t kIsLetter = 1, kIsNumber = 2, kIsBlank = 4;
  std::uint8_t word_class(std::uint32_t c) const { return facts[c] & 7; }
  bool is_space(std::uint32_t c) const { return facts[c] & kIsSpace; }
  bool is_accent(std::uint32_t c) const { return facts[c] & kIsAccent; }

  // For BERT's normalizer and pre-tokenizer.
  bool is_dropped(std::uint32_t c) const { return facts[c] & kIsDropped; }
  bool is_mark(std::uint32_t c) const { return facts[c] & kIsMark; } // fewer than accents
  bool is_alone(std::uint32_t c) const { return facts[c] & kIsAlone; }
  bool is_chinese(std::uint32_t c) const { return facts[c] & kIsChinese; }

  // The text that a character becomes, or null if it stays.
  const std::u32string *lower(std::uint32_t c) const { return find(lowered, c, kIsMapped); }
  const std::u32string *nmt(std::uint32_t c) const { return find(nmt_texts, c, kIsMapped); }

  void normalize(Form form, const std::string &text, std::string &out) const;
  // The end of the grapheme that begins at `at`.
  std::size_t find_grapheme_end(const char *text, std::size_t size, std::size_t at) const;

private:
  using Texts = std::unordered_map<std::uint32_t, std::u32string>;
  static constexpr std::uint16_t kIsSpace = 8, kIsAccent = 16, kIsMapped = 32, kIsCanonical = 64, kIsCompatible = 128,
                                 kIsDropped = 256, kIsAlone = 512, kIsChinese = 1024,
                                 kIsMark = 4096,
                                 kMayChange = 2048; // by NFC: a mark, the second of a composition, or never in NFC

  Unicode();
  const std::u32string *find(const Texts &texts, std::uint32_t c, std::uint16_t fact) const {
    if (!(facts[c] & fact)) return nullptr;
    const auto entry = texts.find(c);
    return entry == texts.end() ? nullptr : &entry->second;
  }
  void decompose(std::uint32_t c, bool compatible, std::u32string &out) const;
  void compose(std::u32string &text) const;

  std::vector<std::uint16_t> facts;
  std::vector<std::uint8_t> ranks;  // of the combining class, 0 for a starter
  std::vector<std::uint16_t> joins; // how a character belongs to a grapheme
  Texts lowered, nmt_texts, canonical, compatible;
  std::unordered_map<std::uint64_t, std::uint32_t> compositions;
};

// Reads one character of valid UTF-8.
inline std::uint32_t decode(const char *text, std::size_t &at) {
  const auto *s = reinterpret_cast<const std::uint8_t *>(text) + at;
  if (s[0] < 0x80) return at += 1, s[0];
  if (s[0] < 0xe0) return at += 2, (s[0] & 31u) << 6 | (s[1] & 63u);
  if (s[0] < 0xf0) return at += 3, (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
  return at += 4, (s[0] & 7u) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6 | (s[3] & 63u);
}

inline std::size_t character_bytes(char first) {
  const auto c = std::uint8_t(first);
  return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

void append_utf8(std::string &out, std::uint32_t c);

} // namespace ridgeline
