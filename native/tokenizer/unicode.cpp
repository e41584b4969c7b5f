#include "tokenizer/unicode.hpp"

#include <algorithm>
#include <iterator>

#include "tokenizer/characters.hpp"

namespace ridgeline {
namespace {

#include "tokenizer/characters.inc"
#include "tokenizer/unicode.inc"

constexpr std::uint32_t kCodePoints = 0x110000, kHangul = 0xac00, kHangulEnd = 0xd7a4;
constexpr std::uint32_t kLead = 0x1100, kVowel = 0x1161, kTail = 0x11a7;

// How a character belongs to a grapheme (Unicode Standard Annex 29).
enum Join : std::uint16_t {
  kIsControl = 1, kIsJoined = 2, kIsExtend = 4, kIsPrepend = 8, kIsPictogram = 16, kIsConsonant = 32, kIsLinker = 64,
  kIsBetween = 128, kIsRegion = 256, kIsLead = 512, kIsVowel = 1024, kIsTail = 2048, kIsJoiner = 4096
};

template <class Fact, std::size_t N> void mark(std::vector<Fact> &facts, const std::uint32_t (&ranges)[N], unsigned fact) {
  for (std::size_t k = 0; k < N; k += 2)
    for (std::uint32_t c = ranges[k]; c <= ranges[k + 1]; ++c) facts[c] = Fact(facts[c] | fact);
}

void mark_range(std::vector<std::uint16_t> &facts, std::uint32_t first, std::uint32_t last, unsigned fact) {
  for (std::uint32_t c = first; c <= last; ++c) facts[c] = std::uint16_t(facts[c] | fact);
}

template <std::size_t N> std::unordered_map<std::uint32_t, std::u32string> read_texts(const std::uint32_t (&rows)[N]) {
  std::unordered_map<std::uint32_t, std::u32string> out;
  for (std::size_t k = 0; k < N; k += 2 + rows[k + 1]) out.emplace(rows[k], std::u32string(rows + k + 2, rows + k + 2 + rows[k + 1]));
  return out;
}

std::uint64_t pair_key(std::uint32_t first, std::uint32_t second) { return std::uint64_t(first) << 32 | second; }

} // namespace

void append_utf8(std::string &out, std::uint32_t c) {
  char bytes[4];
  out.append(bytes, std::size_t(utf8(c, bytes)));
}

const Unicode &Unicode::get() {
  static const Unicode unicode;
  return unicode;
}

Unicode::Unicode()
    : facts(kCodePoints), ranks(kCodePoints), joins(kCodePoints), lowered(read_texts(kLower)), nmt_texts(read_texts(kNmt)),
      canonical(read_texts(kCanonical)), compatible(read_texts(kCompatible)) {
  mark(facts, kLetter, kIsLetter);
  mark(facts, kNumber, kIsNumber);
  mark(facts, kBlank, kIsBlank);
  mark(facts, kSpace, kIsSpace);
  mark(facts, kAccents, kIsAccent);
  mark(facts, kDropped, kIsDropped);
  mark(facts, kStripped, kIsMark);
  mark(facts, kAlone, kIsAlone);
  mark(facts, kChinese, kIsChinese);
  for (const auto *texts : {&lowered, &nmt_texts})
    for (const auto &[c, text] : *texts) facts[c] |= kIsMapped;
  for (const auto &[c, text] : canonical) facts[c] |= kIsCanonical | kMayChange;
  for (const auto &[c, text] : compatible) facts[c] |= kIsCompatible;
  for (std::size_t k = 0; k < std::size(kCompositions); k += 3) {
    compositions[pair_key(kCompositions[k], kCompositions[k + 1])] = kCompositions[k + 2];
    facts[kCompositions[k + 2]] &= std::uint16_t(~kMayChange);
  }
  for (std::size_t k = 0; k < std::size(kCompositions); k += 3) facts[kCompositions[k + 1]] |= kMayChange;
  for (std::size_t k = 0; k < std::size(kClasses); k += 2) {
    ranks[kClasses[k]] = std::uint8_t(kClasses[k + 1] + 1);
    facts[kClasses[k]] |= kMayChange;
  }
  mark_range(facts, kVowel, kVowel + 20, kMayChange);
  mark_range(facts, kTail + 1, kTail + 27, kMayChange);
  mark_range(facts, kHangul, kHangulEnd - 1, kIsCanonical);

  mark(joins, kControl, kIsControl);
  mark(joins, kJoined, kIsJoined);
  mark(joins, kExtend, kIsExtend);
  mark(joins, kPrepend, kIsPrepend);
  mark(joins, kPictographic, kIsPictogram);
  mark(joins, kConsonant, kIsConsonant);
  mark(joins, kLinker, kIsLinker);
  mark(joins, kBetween, kIsBetween);
  joins[0x200d] = kIsJoined | kIsJoiner | kIsBetween;
  mark_range(joins, 0x1f1e6, 0x1f1ff, kIsRegion);
  mark_range(joins, 0x1100, 0x115f, kIsLead);
  mark_range(joins, 0xa960, 0xa97c, kIsLead);
  mark_range(joins, 0x1160, 0x11a7, kIsVowel);
  mark_range(joins, 0xd7b0, 0xd7c6, kIsVowel);
  mark_range(joins, 0x11a8, 0x11ff, kIsTail);
  mark_range(joins, 0xd7cb, 0xd7fb, kIsTail);
  // A syllable is followed by what may follow its last letter: it counts as a vowel or a tail that a lead may precede.
  for (std::uint32_t c = kHangul; c < kHangulEnd; ++c) joins[c] |= (c - kHangul) % 28 ? kIsTail : kIsVowel;
}

void Unicode::decompose(std::uint32_t c, bool with_compatible, std::u32string &out) const {
  const std::uint16_t fact = facts[c];
  if (c >= kHangul && c < kHangulEnd) {
    const std::uint32_t k = c - kHangul, tail = k % 28;
    out += char32_t(kLead + k / (28 * 21));
    out += char32_t(kVowel + k / 28 % 21);
    if (tail) out += char32_t(kTail + tail);
  } else if (with_compatible && fact & kIsCompatible) {
    out += compatible.at(c);
  } else if (fact & kIsCanonical) {
    out += canonical.at(c);
  } else {
    out += char32_t(c);
  }
}

void Unicode::compose(std::u32string &text) const {
  std::size_t size = 0, starter = std::size_t(-1);
  std::uint8_t last = 0; // the rank of the last character after the starter
  for (const char32_t c : text) {
    const std::uint8_t rank = ranks[c];
    if (starter != std::size_t(-1) && (size == starter + 1 || (last < rank && last))) {
      const char32_t first = text[starter];
      std::uint32_t both = 0;
      if (first - kLead < 19 && c - kVowel < 21) {
        both = kHangul + ((first - kLead) * 21 + (c - kVowel)) * 28;
      } else if (first >= kHangul && first < kHangulEnd && (first - kHangul) % 28 == 0 && c - kTail - 1 < 27) {
        both = first + (c - kTail);
      } else if (const auto entry = compositions.find(pair_key(first, c)); entry != compositions.end()) {
        both = entry->second;
      }
      if (both) {
        text[starter] = both;
        continue;
      }
    }
    if (rank == 0) starter = size;
    last = rank;
    text[size++] = c;
  }
  text.resize(size);
}

void Unicode::normalize(Form form, const std::string &text, std::string &out) const {
  const bool with_compatible = form == Form::nfkc || form == Form::nfkd, composes = form == Form::nfc || form == Form::nfkc;
  const std::uint16_t changing = std::uint16_t((composes ? kMayChange : kMayChange | kIsCanonical) | (with_compatible ? kIsCompatible : 0));
  bool same = true;
  for (std::size_t at = 0; at < text.size() && same;) same = !(facts[decode(text.data(), at)] & changing);
  if (same) {
    out = text;
    return;
  }
  std::u32string characters;
  characters.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) decompose(decode(text.data(), at), with_compatible, characters);
  for (std::size_t k = 0; k < characters.size();) { // canonical order
    if (!ranks[characters[k]]) {
      ++k;
      continue;
    }
    std::size_t end = k;
    while (end < characters.size() && ranks[characters[end]]) ++end;
    std::stable_sort(characters.begin() + std::ptrdiff_t(k), characters.begin() + std::ptrdiff_t(end),
                     [&](char32_t a, char32_t b) { return ranks[a] < ranks[b]; });
    k = end;
  }
  if (composes) compose(characters);
  out.clear();
  for (const char32_t c : characters) append_utf8(out, c);
}

std::size_t Unicode::find_grapheme_end(const char *text, std::size_t size, std::size_t at) const {
  std::uint16_t last = 0;
  std::uint32_t last_character = 0;
  bool consonant = false, linked = false, pictogram = false, odd_region = false;
  for (bool first = true; at < size; first = false) {
    std::size_t next = at;
    const std::uint32_t c = decode(text, next);
    const std::uint16_t join = joins[c];
    const bool syllable = c >= kHangul && c < kHangulEnd;
    if (!first) {
      bool joined = false;
      if (last_character == '\r' && c == '\n') joined = true;
      else if ((last | join) & kIsControl) joined = false;
      else if (join & kIsJoined || last & kIsPrepend) joined = true;
      else if (last & kIsLead && (join & (kIsLead | kIsVowel) || syllable)) joined = true;
      else if (last & kIsVowel && join & (kIsVowel | kIsTail) && !syllable) joined = true;
      else if (last & kIsTail && join & kIsTail && !syllable) joined = true;
      else if (join & kIsConsonant && consonant && linked) joined = true;
      else if (join & kIsPictogram && pictogram && last & kIsJoiner) joined = true;
      else if (join & kIsRegion && last & kIsRegion && odd_region) joined = true;
      if (!joined) return at;
    }
    if (join & kIsConsonant) consonant = true, linked = false;
    else if (join & kIsLinker) linked = consonant;
    else if (!(join & kIsBetween)) consonant = false;
    if (join & kIsPictogram) pictogram = true;
    else if (!(join & kIsExtend || (join & kIsJoiner && !(last & kIsJoiner)))) pictogram = false;
    else if (last & kIsJoiner) pictogram = false;
    odd_region = join & kIsRegion && !(last & kIsRegion && odd_region);
    last = join;
    last_character = c;
    at = next;
  }
  return at;
}

} // namespace ridgeline
