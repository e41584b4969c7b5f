#include "tokenizer/normalizer.hpp"

#include <algorithm>
#include <utility>

namespace ridgeline {
namespace {

constexpr std::size_t kShortGrapheme = 6; // bytes: a shorter grapheme is replaced as a whole

bool is_ascii(const std::string &text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return std::uint8_t(c) < 0x80; });
}

// Appends what `get` says a character becomes, or the character.
template <class Get> void map_characters(const std::string &text, std::string &out, const Get &get) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const std::u32string *as = get(decode(text.data(), at));
    if (!as) out.append(text, begin, at - begin);
    else
      for (const char32_t c : *as) append_utf8(out, c);
  }
}

void replace_graphemes(const Charsmap &charsmap, const std::string &text, std::string &out) {
  const Unicode &unicode = Unicode::get();
  std::string_view replacement;
  const auto put = [&](std::string_view part) { out += charsmap.find(part, replacement) ? replacement : part; };
  for (std::size_t at = 0; at < text.size();) {
    const auto c = std::uint8_t(text[at]);
    const bool alone = c < 0x80 && c != '\r' && (at + 1 == text.size() || std::uint8_t(text[at + 1]) < 0x80);
    const std::size_t end = alone ? at + 1 : unicode.find_grapheme_end(text.data(), text.size(), at);
    const std::string_view grapheme(text.data() + at, end - at);
    if (grapheme.size() < kShortGrapheme && charsmap.find(grapheme, replacement)) {
      out += replacement;
    } else {
      for (std::size_t k = at; k < end; k += character_bytes(text[k])) put({text.data() + k, character_bytes(text[k])});
    }
    at = end;
  }
}

} // namespace

bool Charsmap::find(std::string_view text, std::string_view &replacement) const {
  const auto offset = [](std::uint32_t unit) { return std::size_t(unit >> 10) << ((unit & (1u << 9)) >> 6); };
  if (units.empty()) return false;
  std::size_t at = offset(units[0]);
  for (const char one : text) {
    const auto c = std::uint8_t(one);
    if (!c) return false;
    at ^= c;
    if (at >= units.size()) return false;
    const std::uint32_t unit = units[at];
    if ((unit & (1u << 31 | 0xff)) != c) return false;
    at ^= offset(unit);
    if (!(unit >> 8 & 1)) continue;
    if (at >= units.size()) return false;
    const std::size_t begin = units[at] & ~(1u << 31);
    if (begin >= texts.size()) return false;
    replacement = std::string_view(texts).substr(begin, std::min(texts.find('\0', begin), texts.size()) - begin);
    return true;
  }
  return false;
}

Normalizer::Normalizer(std::vector<NormalizerStep> steps) : steps(std::move(steps)) {}

void Normalizer::apply(std::string &text, std::string &scratch, bool continued) const {
  for (const NormalizerStep &step : steps) {
    scratch.clear();
    if (apply_step(step, text, scratch, continued)) std::swap(text, scratch);
  }
}

// False if the text stays as it is.
bool Normalizer::apply_step(const NormalizerStep &step, const std::string &text, std::string &out, bool continued) const {
  const Unicode &unicode = Unicode::get();
  using Kind = NormalizerStep::Kind;
  switch (step.kind) {
  case Kind::nfc:
  case Kind::nfd:
  case Kind::nfkc:
  case Kind::nfkd:
    if (is_ascii(text)) return false;
    unicode.normalize(step.kind == Kind::nfc    ? Form::nfc
                      : step.kind == Kind::nfd  ? Form::nfd
                      : step.kind == Kind::nfkc ? Form::nfkc
                                                : Form::nfkd,
                      text, out);
    return true;
  case Kind::clean_text:
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const std::uint32_t c = decode(text.data(), at);
      if (unicode.is_dropped(c)) continue;
      if (unicode.is_space(c)) out += ' ';
      else out.append(text, begin, at - begin);
    }
    return true;
  case Kind::space_chinese:
    if (is_ascii(text)) return false;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const bool chinese = unicode.is_chinese(decode(text.data(), at));
      if (chinese) out += ' ';
      out.append(text, begin, at - begin);
      if (chinese) out += ' ';
    }
    return true;
  case Kind::nmt: map_characters(text, out, [&](std::uint32_t c) { return unicode.nmt(c); }); return true;
  case Kind::lowercase: map_characters(text, out, [&](std::uint32_t c) { return unicode.lower(c); }); return true;
  case Kind::strip_accents:
  case Kind::strip_marks: {
    if (is_ascii(text)) return false;
    static const std::u32string nothing;
    const bool marks = step.kind == Kind::strip_marks;
    map_characters(text, out, [&](std::uint32_t c) { return (marks ? unicode.is_mark(c) : unicode.is_accent(c)) ? &nothing : nullptr; });
    return true;
  }
  case Kind::strip_left: {
    if (continued) return false;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size() && unicode.is_space(decode(text.data(), at)); begin = at) {
    }
    out.assign(text, begin, std::string::npos);
    return true;
  }
  case Kind::strip_right: {
    std::size_t end = text.size();
    while (end > 0) {
      std::size_t begin = end - 1;
      while (begin > 0 && (std::uint8_t(text[begin]) & 0xc0) == 0x80) --begin;
      std::size_t at = begin;
      if (!unicode.is_space(decode(text.data(), at))) break;
      end = begin;
    }
    out.assign(text, 0, end);
    return true;
  }
  case Kind::replace:
    for (std::size_t at = 0;;) {
      const std::size_t match = text.find(step.from, at);
      out.append(text, at, match - at);
      if (match == std::string::npos) return true;
      out += step.to;
      at = match + step.from.size();
    }
  case Kind::replace_spaces:
    for (std::size_t at = 0;;) {
      const std::size_t match = text.find("  ", at);
      out.append(text, at, match - at);
      if (match == std::string::npos) return true;
      out += step.to;
      at = std::min(text.find_first_not_of(' ', match), text.size());
    }
  case Kind::charsmap: replace_graphemes(step.charsmap, text, out); return true;
  }
  return false;
}

} // namespace ridgeline
