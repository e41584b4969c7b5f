#include "tokenizer/characters.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

namespace ridgeline {
namespace {

#include "tokenizer/characters.inc"

// The facts of the committed table, one byte per code point.
enum Fact : std::uint8_t { kIsDropped = 1, kIsSpace = 2, kIsAlone = 4, kIsChinese = 8, kIsStripped = 16, kIsInPlace = 32, kIsMapped = 64 };

template <std::size_t N> void mark(std::vector<std::uint8_t> &facts, const std::uint32_t (&ranges)[N], Fact fact) {
  for (std::size_t k = 0; k < N; k += 2)
    for (std::uint32_t c = ranges[k]; c <= ranges[k + 1]; ++c) facts[c] |= fact;
}

using Texts = std::unordered_map<std::uint32_t, std::u32string>;

template <std::size_t N> Texts texts(const std::uint32_t (&rows)[N]) {
  Texts out;
  for (std::size_t k = 0; k < N; k += 2 + rows[k + 1]) out.emplace(rows[k], std::u32string(rows + k + 2, rows + k + 2 + rows[k + 1]));
  return out;
}

constexpr std::uint32_t kHangul = 0xac00, kHangulEnd = 0xd7a4;

std::u32string jamo(std::uint32_t c) {
  const std::uint32_t k = c - kHangul, tail = k % 28, vowel = k / 28 % 21, lead = k / (28 * 21);
  std::u32string out{char32_t(0x1100 + lead), char32_t(0x1161 + vowel)};
  if (tail) out += char32_t(0x11a7 + tail);
  return out;
}

struct Tables {
  std::vector<std::uint8_t> facts;
  Texts decomposed = texts(kDecomposed), lower = texts(kLower);
  std::unordered_map<std::uint32_t, std::uint8_t> rank;

  Tables() : facts(0x110000) {
    mark(facts, kDropped, kIsDropped);
    mark(facts, kSpace, kIsSpace);
    mark(facts, kAlone, kIsAlone);
    mark(facts, kChinese, kIsChinese);
    mark(facts, kStripped, kIsStripped);
    mark(facts, kStrippedInPlace, kIsInPlace);
    for (std::size_t k = 0; k < std::size(kMovable); k += 2) rank[kMovable[k]] = std::uint8_t(kMovable[k + 1] + 1);
    for (auto *some : {&decomposed, &lower})
      for (const auto &[c, text] : *some) facts[c] |= kIsMapped;
    for (const auto &[c, k] : rank) facts[c] |= kIsMapped;
    for (std::uint32_t c = kHangul; c < kHangulEnd; ++c) facts[c] |= kIsMapped;
  }

  std::u32string normal(std::uint32_t c, const CharacterOptions &options) const {
    std::u32string text(1, char32_t(c));
    if (options.strip_accents) {
      if (c >= kHangul && c < kHangulEnd) text = jamo(c);
      else if (auto entry = decomposed.find(c); entry != decomposed.end()) text = entry->second;
    }
    if (!options.lowercase) return text;
    std::u32string small;
    for (char32_t one : text) {
      auto entry = lower.find(one);
      if (entry == lower.end()) small += one;
      else small += entry->second;
    }
    return small;
  }
};

// Marks the characters that occur in a token.
std::vector<bool> collect_characters(const std::vector<std::string> &tokens) {
  std::vector<bool> known(0x110000);
  for (const std::string &token : tokens)
    for (std::size_t k = 0; k < token.size();) {
      const auto first = std::uint8_t(token[k++]);
      std::uint32_t c = first < 0x80 ? first : first < 0xe0 ? first & 31 : first < 0xf0 ? first & 15 : first & 7;
      while (k < token.size() && (std::uint8_t(token[k]) & 0xc0) == 0x80) c = c << 6 | (std::uint8_t(token[k++]) & 63);
      if (c < known.size()) known[c] = true;
    }
  return known;
}

std::string utf8(const std::u32string &text) {
  std::string out;
  char bytes[4];
  for (char32_t c : text) out.append(bytes, std::size_t(ridgeline::utf8(c, bytes)));
  return out;
}

} // namespace

Entry Entry::inlined(const std::string &bytes, int characters) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data(), bytes.size());
  return Entry(std::uint64_t(Role::inlined) | std::uint64_t(bytes.size()) << 4 | std::uint64_t(characters) << 8 | bits << 16);
}

Characters::Characters(const CharacterOptions &options, const std::vector<std::string> &tokens) : blocks(kBlocks) {
  const Tables tables;
  const std::vector<bool> known_characters = collect_characters(tokens);
  const auto known_to_tokens = [&](char32_t c) { return known_characters[c]; };
  std::vector<Entry> block(kBlock);
  std::unordered_map<std::string, std::uint16_t> known_blocks; // equal blocks are stored once
  for (int b = 0; b < kBlocks; ++b) {
    for (int k = 0; k < kBlock; ++k) {
      const std::uint32_t c = std::uint32_t(b * kBlock + k);
      const std::uint8_t fact = tables.facts[c];
      block[k] = Entry::of(known_to_tokens(c) ? Role::same : Role::foreign);
      if (c >= 0x80 && !fact) continue;
      if (options.clean_text && fact & kIsDropped) {
        block[k] = Entry::of(Role::dropped);
        continue;
      }
      if (fact & kIsSpace) {
        block[k] = Entry::of(Role::space);
        continue;
      }
      if (options.strip_accents && fact & kIsStripped) {
        block[k] = Entry::of(fact & kIsInPlace ? Role::barrier : Role::dropped);
        continue;
      }
      const std::u32string text = tables.normal(c, options);
      const bool punctuation = text.size() == 1 && tables.facts[text[0]] & kIsAlone;
      if (punctuation || (options.handle_chinese_chars && fact & kIsChinese)) {
        block[k] = Entry::of(Role::alone);
        standalone.emplace_back(c, utf8(text));
        continue;
      }
      if (!std::all_of(text.begin(), text.end(), known_to_tokens)) {
        block[k] = Entry::of(Role::foreign);
        continue;
      }
      const auto movable = [&](char32_t one) { return options.strip_accents && tables.rank.count(one); };
      const std::string bytes = utf8(text);
      if (std::none_of(text.begin(), text.end(), movable) && bytes.size() <= 6) {
        block[k] = c >= 0x80 && text.size() == 1 && text[0] == c ? Entry::of(Role::same) : Entry::inlined(bytes, int(text.size()));
        continue;
      }
      Listed listed;
      for (char32_t one : text) {
        Listed::One as{};
        as.bytes = std::uint8_t(ridgeline::utf8(one, as.text));
        as.rank = movable(one) ? tables.rank.at(one) : 0;
        listed.characters.push_back(as);
      }
      block[k] = Entry::of(Role::listed, std::uint32_t(lists.size()));
      lists.push_back(std::move(listed));
    }
    const auto bytes = std::string(reinterpret_cast<const char *>(block.data()), block.size() * sizeof(Entry));
    const bool has_standalone = !standalone.empty() && standalone.back().first / kBlock == std::uint32_t(b); // its tokens are set later
    auto [position, fresh] = known_blocks.try_emplace(has_standalone ? bytes + std::to_string(b) : bytes, std::uint16_t(entries.size() / kBlock));
    if (fresh) entries.insert(entries.end(), block.begin(), block.end());
    blocks[b] = position->second;
  }
}

} // namespace ridgeline
