// Texts → tokens as BERT's tokenizer makes them: normalise, split, longest pieces first; straight from CPython's
// strings, without UTF-8 in between.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tokenizer/characters.hpp"
#include "threads/instruction_set.hpp"
#include "tokenizer/vocabulary.hpp"

namespace ridgeline {

// A string as CPython holds it: 1, 2 or 4 bytes for each character, and a zero after the last.
struct Text {
  const void *data;
  std::int64_t size; // characters
  int width;
};

// Matched in the raw text, before anything else; begins with ASCII punctuation.
struct Added {
  std::u32string text;
  std::int32_t token;
};

struct WordPieceOptions {
  CharacterOptions characters;
  int max_word; // a word of more characters is unknown
  std::int32_t unknown;
  std::vector<std::int32_t> before, after; // [CLS] and [SEP]
  std::vector<Added> added;
};

// Words that are not one token: a thread keeps the pieces of those that it met last.
struct Recent {
  static constexpr int kBytes = 24, kPieces = 8, kBits = 12;
  char word[kBytes];
  std::uint8_t size, count;
  std::int32_t tokens[kPieces];
};

// What one thread works with; made once and kept for the next call.
struct Worker {
  explicit Worker(int max_word);

  std::vector<std::int32_t> tokens; // room; `used` of it is filled
  std::size_t used = 0;
  std::vector<char> word;           // the normalised word so far
  struct Moved {
    std::uint8_t bytes, rank;
  };
  std::vector<Moved> run; // marks at its end that canonical order may still move
  std::vector<Recent> recent;
};

class WordPiece {
public:
  WordPiece(const std::vector<std::string> &tokens, const WordPieceOptions &options);

  // Tokens of all texts, and into `offsets` [texts + 1] where each begins. `limit` counts all tokens of a text. The
  // first text with a lone surrogate, or -1; then there are no tokens. The array is from malloc.
  struct Result {
    std::int32_t *tokens;
    std::int64_t refused;
  };
  Result encode(const std::vector<Text> &texts, std::int64_t *offsets, std::int64_t limit, int threads, Isa isa);

  const Vocabulary vocabulary;
  const WordPieceOptions options;
  const Characters &characters() const { return table; }

private:
  class Lent;

  Characters table;
  std::mutex door;
  std::vector<std::unique_ptr<Worker>> idle;
};

struct WordPieceLoops {
  // Appends the tokens of one text to the worker's; false if there is a lone surrogate.
  bool (*encode)(const WordPiece &tokenizer, Worker &worker, const Text &text, std::int64_t limit);
};

} // namespace ridgeline
