// The normalizers of tokenizer.json, on UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/unicode.hpp"

namespace ridgeline {

// SentencePiece's table of replacements: a double array whose values are positions in `texts`.
struct Charsmap {
  std::vector<std::uint32_t> units;
  std::string texts;

  // What the shortest beginning of `text` in the table becomes; false if there is none.
  bool find(std::string_view text, std::string_view &replacement) const;
};

struct NormalizerStep {
  // clean_text, space_chinese, strip_marks: of BERT; replace: a text by another; replace_spaces: two and more spaces by a text.
  enum class Kind { clean_text, space_chinese, strip_marks, nmt, nfc, nfd, nfkc, nfkd, lowercase, strip_accents, strip_left, strip_right, replace, replace_spaces, charsmap };
  Kind kind;
  std::string from, to;
  Charsmap charsmap;
};

class Normalizer {
public:
  explicit Normalizer(std::vector<NormalizerStep> steps);

  bool empty() const { return steps.empty(); }
  // Normalizes `text` in place. `continued`: the text continues another, so its beginning is not stripped.
  void apply(std::string &text, std::string &scratch, bool continued) const;

private:
  bool apply_step(const NormalizerStep &step, const std::string &text, std::string &out, bool continued) const;

  std::vector<NormalizerStep> steps;
};

} // namespace ridgeline
