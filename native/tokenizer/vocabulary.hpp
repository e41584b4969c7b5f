// A WordPiece vocabulary: complete words by hash, pieces by the longest match in a trie of bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tokenizer/trie.hpp"

namespace ridgeline {

// Up to 16 bytes of a word, the rest zero.
struct Key {
  std::uint64_t low, high;
  bool operator==(const Key &other) const { return low == other.low && high == other.high; }

  std::uint64_t hash() const {
    const auto product = static_cast<unsigned __int128>(low ^ 0x9e3779b97f4a7c15) * (high ^ 0xd6e8feb86659fd93);
    return std::uint64_t(product) ^ std::uint64_t(product >> 64);
  }
};

class Vocabulary {
public:
  explicit Vocabulary(const std::vector<std::string> &tokens, std::int32_t unknown);

  // The token of a complete word, or -1.
  std::int32_t find_word(const Key &key, std::uint64_t hash) const {
    const std::uint8_t expected = tag(hash);
    for (std::size_t k = hash >> shift;; ++k) {
      const std::uint8_t current = tags[k];
      if (current == expected && words[k].key == key) return words[k].token;
      if (!current) return -1;
    }
  }

  // The pieces of a word of `size` bytes, or the one unknown token; returns how many. `to` has space for `size` tokens.
  int pieces(const char *word, int size, std::int32_t *to) const {
    const Trie::Node *const all = trie.data();
    int count = 0, at = 0;
    std::uint32_t base = outer;
    while (at < size) {
      std::int32_t token = -1;
      int end = at;
      for (int k = at; k < size; ++k) {
        const auto byte = std::uint8_t(word[k]);
        const Trie::Node node = all[base + byte];
        if (!node.is(byte)) break;
        base = node.base;
        const std::int32_t current = node.token();
        end = current < 0 ? end : k + 1;
        token = current < 0 ? token : current;
      }
      if (token < 0) return to[0] = unknown_token, 1;
      to[count++] = token;
      at = end;
      base = inner;
    }
    return count;
  }

  std::int32_t unknown() const { return unknown_token; }
  std::int32_t size() const { return token_count; }

private:
  struct Word {
    Key key;
    std::int32_t token;
  };
  static std::uint8_t tag(std::uint64_t hash) { return std::uint8_t(hash) | 1; }
  void build_words(const std::vector<std::string> &tokens);
  void find_bases();

  std::vector<Word> words;
  std::vector<std::uint8_t> tags; // one byte of each word's hash, 0 for an empty slot: a word that is missing is rejected without reading `words`
  int shift = 0;
  Trie trie;
  std::uint32_t outer = 0, inner = 0; // bases: of the first byte of a word, and of that after "##"
  std::int32_t unknown_token, token_count;
};

} // namespace ridgeline
