// BERT's tokenizer: normalise, split, longest pieces first. It reads CPython's strings directly, without UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "threads/instruction_set.hpp"
#include "tokenizer/batch.hpp"
#include "tokenizer/characters.hpp"
#include "tokenizer/vocabulary.hpp"

namespace ridgeline {

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

// A cache of the pieces of recent words that are not one token.
struct Recent {
  static constexpr int kBytes = 24, kPieces = 8, kBits = 12;
  char word[kBytes];
  std::uint8_t size, count;
  std::int32_t tokens[kPieces];
};

// The buffers of one thread; they are reused by the next call.
struct Worker {
  explicit Worker(int max_word);

  std::vector<std::int32_t> tokens; // capacity; the first `used` are filled
  std::size_t used = 0;
  std::vector<char> word;           // the normalised word so far
  struct Mark {
    std::uint8_t bytes, rank;
  };
  std::vector<Mark> run; // marks at the end that canonical order may still move
  std::vector<Recent> recent;
};

class WordPiece {
public:
  WordPiece(const std::vector<std::string> &tokens, const WordPieceOptions &options);

  // Encodes all texts and writes the start of each to `offsets` [texts + 1]. `limit` counts all tokens of a text.
  EncodedTexts encode(const std::vector<Text> &texts, std::int64_t *offsets, std::int64_t limit, int threads, Isa isa);

  const Vocabulary vocabulary;
  const WordPieceOptions options;
  const Characters &characters() const { return table; }

private:
  Characters table;
  WorkerPool<Worker> workers;
};

struct WordPieceLoops {
  // Appends the tokens of one text to the worker's; false if there is a lone surrogate.
  bool (*encode)(const WordPiece &tokenizer, Worker &worker, const Text &text, std::int64_t limit);
};

} // namespace ridgeline
