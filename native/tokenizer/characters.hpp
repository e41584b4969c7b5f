// What a BERT tokenizer does with a character, in one table: cleaning, spaces, accents, lower case and splitting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ridgeline {

struct CharacterOptions {
  bool clean_text, handle_chinese_chars, strip_accents, lowercase;
};

enum class Role : std::uint8_t {
  same,    // part of a word, unchanged
  inlined, // part of a word, as the UTF-8 bytes of the entry
  listed,  // part of a word, as one of `Characters::lists`
  foreign, // part of a word, and in no token: the word is unknown
  dropped, // ignored
  barrier, // ignored, but marks do not move past it
  space,   // ends a word
  alone,   // ends a word and is a word by itself
};

// Bits 0–2 role, 3 may begin an added token, 4–7 bytes, 8–11 characters, 16–63 UTF-8 bytes; `listed` and `alone` have
// an index or a token in the upper half instead.
class Entry {
public:
  Entry() = default;
  static Entry of(Role role) { return Entry(std::uint64_t(role)); }
  static Entry of(Role role, std::uint32_t payload) { return Entry(std::uint64_t(role) | std::uint64_t(payload) << 32); }
  static Entry inlined(const std::string &bytes, int characters);

  Role role() const { return Role(bits & 7); }
  bool ends_word() const { return (bits & 7) >= std::uint64_t(Role::space); }
  bool may_begin_added() const { return bits >> 3 & 1; }
  void begins_added() { bits |= 8; }
  int bytes() const { return bits >> 4 & 15; }
  int characters() const { return bits >> 8 & 15; }
  std::uint64_t text() const { return bits >> 16; }
  std::uint32_t payload() const { return bits >> 32; }

private:
  explicit Entry(std::uint64_t bits) : bits(bits) {}
  std::uint64_t bits = 0;
};

// A character that becomes several, or that canonical order may move; rank 0: it does not move.
struct Listed {
  struct One {
    std::uint8_t bytes, rank;
    char text[4];
  };
  std::vector<One> characters;
};

class Characters {
public:
  static constexpr int kBlock = 256, kBlocks = 0x110000 / kBlock;

  // `tokens` are UTF-8; a character that occurs in no token is foreign.
  Characters(const CharacterOptions &options, const std::vector<std::string> &tokens);

  Entry at(std::uint32_t c) const { return entries[std::size_t(blocks[c / kBlock]) * kBlock + c % kBlock]; }
  Entry &change(std::uint32_t c) { return entries[std::size_t(blocks[c / kBlock]) * kBlock + c % kBlock]; }
  const Entry *low() const { return entries.data(); } // the first 256 characters
  const Listed &list(Entry e) const { return lists[e.payload()]; }

  // Characters with the role `alone`, and the UTF-8 text of the word that each becomes.
  const std::vector<std::pair<std::uint32_t, std::string>> &alone() const { return standalone; }

private:
  std::vector<std::uint16_t> blocks;
  std::vector<Entry> entries;
  std::vector<Listed> lists;
  std::vector<std::pair<std::uint32_t, std::string>> standalone;
};

// Writes 1 to 4 bytes, returns how many.
inline int utf8(std::uint32_t c, char *to) {
  if (c < 0x80) return to[0] = char(c), 1;
  if (c < 0x800) return to[0] = char(0xc0 | c >> 6), to[1] = char(0x80 | (c & 63)), 2;
  if (c < 0x10000)
    return to[0] = char(0xe0 | c >> 12), to[1] = char(0x80 | (c >> 6 & 63)), to[2] = char(0x80 | (c & 63)), 3;
  return to[0] = char(0xf0 | c >> 18), to[1] = char(0x80 | (c >> 12 & 63)), to[2] = char(0x80 | (c >> 6 & 63)),
         to[3] = char(0x80 | (c & 63)), 4;
}

} // namespace ridgeline
