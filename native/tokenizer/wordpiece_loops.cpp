// Compiled once per instruction set (CMakeLists.txt), each time in a namespace of its own.
#include <algorithm>
#include <cstring>
#include <limits>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "tokenizer/wordpiece.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

constexpr int kWide = sizeof(Key); // characters read at once

// The ASCII letters and digits at the beginning of 16 characters, in lower case with kLower.
struct Run {
  Key key;
  int size; // 16 means 16 or more
};

alignas(16) constexpr std::uint8_t kKeep[2 * kWide] = {255, 255, 255, 255, 255, 255, 255, 255,
                                                       255, 255, 255, 255, 255, 255, 255, 255};

// Characters outside ASCII become any byte that is neither letter nor digit.
#if defined(__aarch64__)
inline uint8x16_t narrow(const std::uint8_t *s) { return vld1q_u8(s); }
inline uint8x16_t narrow(const std::uint16_t *s) {
  return vcombine_u8(vqmovn_u16(vld1q_u16(s)), vqmovn_u16(vld1q_u16(s + 8)));
}
inline uint8x16_t narrow(const std::uint32_t *s) {
  const auto half = [](const std::uint32_t *p) {
    return vqmovn_u16(vcombine_u16(vqmovn_u32(vld1q_u32(p)), vqmovn_u32(vld1q_u32(p + 4))));
  };
  return vcombine_u8(half(s), half(s + 8));
}

template <bool kLower, class C> inline Run run16(const C *s) {
  const uint8x16_t c = narrow(s);
  const uint8x16_t letter = vcltq_u8(vsubq_u8(vorrq_u8(c, vdupq_n_u8(0x20)), vdupq_n_u8('a')), vdupq_n_u8(26));
  const uint8x16_t digit = vcltq_u8(vsubq_u8(c, vdupq_n_u8('0')), vdupq_n_u8(10));
  const uint8x8_t nibbles = vshrn_n_u16(vreinterpretq_u16_u8(vorrq_u8(letter, digit)), 4);
  const std::uint64_t other = ~vget_lane_u64(vreinterpret_u64_u8(nibbles), 0);
  const int size = other ? __builtin_ctzll(other) / 4 : kWide;
  uint8x16_t key = kLower ? vorrq_u8(c, vandq_u8(letter, vdupq_n_u8(0x20))) : c;
  key = vandq_u8(key, vld1q_u8(kKeep + kWide - size));
  const uint64x2_t words = vreinterpretq_u64_u8(key);
  return {{vgetq_lane_u64(words, 0), vgetq_lane_u64(words, 1)}, size};
}
#elif defined(__SSE2__)
inline __m128i load(const void *p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }
inline __m128i narrow(const std::uint8_t *s) { return load(s); }
inline __m128i narrow(const std::uint16_t *s) { return _mm_packus_epi16(load(s), load(s + 8)); }
inline __m128i narrow(const std::uint32_t *s) {
  return _mm_packus_epi16(_mm_packs_epi32(load(s), load(s + 4)), _mm_packs_epi32(load(s + 8), load(s + 12)));
}
inline __m128i at_most(__m128i c, char bound) {
  return _mm_cmpeq_epi8(_mm_min_epu8(c, _mm_set1_epi8(bound)), c);
}

template <bool kLower, class C> inline Run run16(const C *s) {
  const __m128i c = narrow(s), blank = _mm_set1_epi8(0x20);
  const __m128i letter = at_most(_mm_sub_epi8(_mm_or_si128(c, blank), _mm_set1_epi8('a')), 25);
  const __m128i digit = at_most(_mm_sub_epi8(c, _mm_set1_epi8('0')), 9);
  const auto in = unsigned(_mm_movemask_epi8(_mm_or_si128(letter, digit)));
  const int size = __builtin_ctz(~in | 1u << kWide);
  __m128i key = kLower ? _mm_or_si128(c, _mm_and_si128(letter, blank)) : c;
  key = _mm_and_si128(key, load(kKeep + kWide - size));
  Run run;
  std::memcpy(&run.key, &key, sizeof key);
  run.size = size;
  return run;
}
#else
template <bool kLower, class C> inline Run run16(const C *s) {
  std::uint8_t bytes[kWide] = {};
  int size = 0;
  for (; size < kWide; ++size) {
    const std::uint32_t c = s[size], letter = (c | 0x20) - 'a' < 26;
    if (!letter && c - '0' >= 10) break;
    bytes[size] = std::uint8_t(kLower && letter ? c | 0x20 : c);
  }
  Run run;
  std::memcpy(&run.key, bytes, sizeof bytes);
  run.size = size;
  return run;
}
#endif

template <class C> inline bool letter_or_digit(C c) {
  return (std::uint32_t(c) | 0x20) - 'a' < 26 || std::uint32_t(c) - '0' < 10;
}

inline bool has_surrogates(const std::uint8_t *, std::int64_t) { return false; }
template <class C> bool has_surrogates(const C *s, std::int64_t size) {
  constexpr std::int64_t kPiece = 1024;
  for (std::int64_t from = 0; from < size; from += kPiece) {
    const std::int64_t to = std::min(size, from + kPiece);
    C invalid_count = 0;
    for (std::int64_t k = from; k < to; ++k) invalid_count |= C((s[k] & C(~C(0x7ff))) == 0xd800);
    if (invalid_count) return true;
  }
  return false;
}

template <class C, bool kLower> class Scan {
public:
  Scan(const WordPiece &tokenizer, Worker &worker, const C *s, std::int64_t size, std::int64_t limit)
      : tokenizer(tokenizer), worker(worker), s(s), size(size), limit(limit) {
    if (size >= kWide) std::memcpy(tail, s + size - kWide, kWide * sizeof(C));
    else std::memcpy(tail + kWide - size, s, std::size_t(size) * sizeof(C));
  }

  void run() {
    const auto &before = tokenizer.options.before, &after = tokenizer.options.after;
    const std::int64_t frame = std::int64_t(before.size() + after.size());
    limit = std::max<std::int64_t>(0, limit - frame);
    spare = std::size_t(tokenizer.options.max_word) + before.size() + after.size() + kWide;
    start = worker.used;
    reserve();
    out = std::copy(before.begin(), before.end(), out);
    start += before.size();
    reserve_from(out);
    words();
    const auto invalid_count = std::int64_t(out - (worker.tokens.data() + start));
    if (invalid_count > limit) out -= invalid_count - limit;
    out = std::copy(after.begin(), after.end(), out);
    worker.used = std::size_t(out - worker.tokens.data());
  }

private:
  // Up to `stop` there is space for another word; past it the buffer grows, or the limit is reached.
  void reserve() {
    if (worker.tokens.size() < worker.used + 2 * spare) worker.tokens.resize(2 * worker.tokens.size() + 2 * spare);
    out = worker.tokens.data() + worker.used;
  }
  void reserve_from(std::int32_t *to) {
    worker.used = std::size_t(to - worker.tokens.data());
    reserve();
    const auto left = std::int64_t(worker.tokens.size() - start - spare);
    stop = worker.tokens.data() + start + std::min(left, limit);
  }
  bool full() {
    if (out - (worker.tokens.data() + start) >= limit) return true;
    reserve_from(out);
    return false;
  }

  Run run_at(std::int64_t at) const {
    return run16<kLower>(size - at >= kWide ? s + at : tail + kWide - (size - at));
  }

  void words() {
    const Characters &table = tokenizer.characters();
    std::int64_t at = 0;
    while (at < size) {
      if (out >= stop && full()) return;
      const C c = s[at];
      if (letter_or_digit(c)) {
        const Run run = run_at(at);
        const std::int64_t next = at + run.size;
        if (run.size < kWide) {
          if (s[next] == ' ') {
            put(run);
            at = next + 1;
            continue;
          }
          if (next == size || table.at(s[next]).ends_word()) {
            put(run);
            at = next;
            continue;
          }
        }
        at = word(at);
        continue;
      }
      const Entry entry = table.at(c);
      switch (entry.role()) {
      case Role::space:
      case Role::dropped:
      case Role::barrier: ++at; break;
      case Role::alone:
        if (entry.may_begin_added()) {
          if (const Added *invalid_count = added(at)) {
            *out++ = invalid_count->token;
            at += std::int64_t(invalid_count->text.size());
            break;
          }
        }
        *out++ = std::int32_t(entry.payload());
        ++at;
        break;
      default: at = word(at);
      }
    }
  }

  const Added *added(std::int64_t at) const { // longest first
    for (const Added &one : tokenizer.options.added) {
      const auto length = std::int64_t(one.text.size());
      if (length <= size - at && std::equal(one.text.begin(), one.text.end(), s + at,
                                            [](char32_t a, C b) { return a == std::uint32_t(b); }))
        return &one;
    }
    return nullptr;
  }

  // A word with any characters, from `at` on; returns its end.
  std::int64_t word(std::int64_t at) {
    const Characters &table = tokenizer.characters();
    const int max_word = tokenizer.options.max_word;
    char *const text = worker.word.data();
    int bytes = 0, count = 0;
    worker.run.clear();
    for (; at < size; ++at) {
      const std::uint32_t c = s[at];
      if (letter_or_digit(c)) {
        const Run part = run_at(at);
        at += part.size - 1;
        if (count > max_word) continue; // unknown in any case: only its end matters
        std::memcpy(text + bytes, &part.key, sizeof part.key);
        bytes += part.size;
        count += part.size;
        worker.run.clear();
        continue;
      }
      const Entry entry = table.at(c);
      if (entry.ends_word()) break;
      if (count > max_word) continue;
      switch (entry.role()) {
      case Role::same:
        bytes += utf8(c, text + bytes);
        ++count;
        worker.run.clear();
        break;
      case Role::inlined: {
        const std::uint64_t part = entry.text();
        std::memcpy(text + bytes, &part, sizeof part);
        bytes += entry.bytes();
        count += entry.characters();
        worker.run.clear();
        break;
      }
      case Role::listed:
        for (const Listed::One &one : table.list(entry).characters) {
          move(text, bytes, one);
          bytes += one.bytes;
          ++count;
        }
        break;
      case Role::foreign: count = max_word + 1; break;
      case Role::barrier: worker.run.clear(); break;
      default: break;
      }
    }
    if (count > max_word) *out++ = tokenizer.options.unknown;
    else if (count) put(text, bytes);
    return at;
  }

  // Puts a character at the end, or before the marks of higher rank.
  void move(char *text, int bytes, const Listed::One &one) {
    auto &run = worker.run;
    if (!one.rank) {
      run.clear();
      std::memcpy(text + bytes, one.text, sizeof one.text);
      return;
    }
    std::size_t k = run.size();
    int to = bytes;
    for (; k > 0 && run[k - 1].rank > one.rank; --k) to -= run[k - 1].bytes;
    std::memmove(text + to + one.bytes, text + to, std::size_t(bytes - to));
    std::memcpy(text + to, one.text, one.bytes);
    run.insert(run.begin() + std::ptrdiff_t(k), {one.bytes, one.rank});
  }

  void put(const Run &run) {
    if (run.size > tokenizer.options.max_word) {
      *out++ = tokenizer.options.unknown;
      return;
    }
    const std::uint64_t hash = run.key.hash();
    const std::int32_t token = tokenizer.vocabulary.find_word(run.key, hash);
    if (token >= 0) {
      *out++ = token;
      return;
    }
    char text[Recent::kBytes] = {};
    std::memcpy(text, &run.key, sizeof run.key);
    pieces(text, run.size, hash);
  }

  void put(const char *word, int bytes) {
    if (bytes > Recent::kBytes) {
      out += tokenizer.vocabulary.pieces(word, bytes, out);
      return;
    }
    char text[Recent::kBytes] = {};
    std::memcpy(text, word, std::size_t(bytes));
    Key key;
    std::memcpy(&key, text, sizeof key);
    std::uint64_t hash = key.hash(), rest;
    if (bytes <= kWide && text[bytes - 1]) {
      const std::int32_t token = tokenizer.vocabulary.find_word(key, hash);
      if (token >= 0) {
        *out++ = token;
        return;
      }
    }
    std::memcpy(&rest, text + sizeof key, sizeof rest);
    pieces(text, bytes, hash ^ rest * 0x9e3779b97f4a7c15);
  }

  void pieces(const char (&text)[Recent::kBytes], int bytes, std::uint64_t hash) {
    Recent &recent = worker.recent[hash >> (64 - Recent::kBits)];
    if (recent.size != bytes || std::memcmp(recent.word, text, sizeof text)) {
      const int count = tokenizer.vocabulary.pieces(text, bytes, out);
      if (count <= Recent::kPieces) {
        std::memcpy(recent.word, text, sizeof text);
        std::copy(out, out + count, recent.tokens);
        recent.size = std::uint8_t(bytes), recent.count = std::uint8_t(count);
      }
      out += count;
      return;
    }
    std::memcpy(out, recent.tokens, sizeof recent.tokens);
    out += recent.count;
  }

  const WordPiece &tokenizer;
  Worker &worker;
  const C *const s;
  const std::int64_t size;
  std::int64_t limit;
  C tail[2 * kWide] = {}; // the last characters and zeros: 16 can be read from each
  std::size_t spare = 0, start = 0; // start: of the tokens of the text
  std::int32_t *out = nullptr, *stop = nullptr;
};

template <class C> bool encode_as(const WordPiece &tokenizer, Worker &worker, const Text &text, std::int64_t limit) {
  const C *s = static_cast<const C *>(text.data);
  if (has_surrogates(s, text.size)) return false;
  if (tokenizer.options.characters.lowercase) Scan<C, true>(tokenizer, worker, s, text.size, limit).run();
  else Scan<C, false>(tokenizer, worker, s, text.size, limit).run();
  return true;
}

bool encode(const WordPiece &tokenizer, Worker &worker, const Text &text, std::int64_t limit) {
  switch (text.width) {
  case 1: return encode_as<std::uint8_t>(tokenizer, worker, text, limit);
  case 2: return encode_as<std::uint16_t>(tokenizer, worker, text, limit);
  default: return encode_as<std::uint32_t>(tokenizer, worker, text, limit);
  }
}

} // namespace

extern const WordPieceLoops wordpiece_loops;
const WordPieceLoops wordpiece_loops{encode};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
