// Tokenizers that read UTF-8: normalize, find added tokens, split into words, and split words by Unigram, byte pairs or WordPiece.
// WordPiece with BERT's usual added tokens has faster loops (wordpiece.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/batch.hpp"
#include "tokenizer/normalizer.hpp"
#include "tokenizer/trie.hpp"
#include "tokenizer/vocabulary.hpp"

namespace ridgeline {

// A token that is found in the text before it is split. lstrip, rstrip: with the white space before it, or after it.
struct AddedToken {
  std::string text;
  std::int32_t token;
  bool lstrip, rstrip;
};

class AddedTokens {
public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens.empty(); }
  // The first match from `at` on, the longest of those that begin there: its beginning and its token, or null.
  const AddedToken *find(std::string_view text, std::size_t at, std::size_t &begin) const;

  const std::vector<AddedToken> tokens;

private:
  Trie trie;
  std::array<bool, 256> begins{}; // whether a token begins with this byte
};

enum class Split {
  metaspace,       // spaces become "▁", each begins a word; a "▁" is put before the text
  metaspace_plain, // the same, nothing is put before the text
  metaspace_words, // the same for each word between white space
  marks,           // the normalizer wrote "▁": it begins a word if another character is before it
  bert, // words between white space, and every punctuation
  gpt2, tiktoken1, tiktoken3, // the regular expressions of GPT-2, and of tiktoken with one or three digits
};

// Tokens of bytes or characters are merged in the order of their ranks.
struct BytePairs {
  std::vector<std::int32_t> left, right, merged; // by rank
  std::array<std::int32_t, 256> bytes;           // the token of each byte
  bool of_characters;                            // words begin as characters; bytes stand for those that are no token
  bool whole_words;                              // a word that is a token is not merged
};

// The pieces with the largest sum of scores.
struct Unigram {
  std::vector<double> scores;
  std::int32_t unknown;
  std::array<std::int32_t, 256> bytes; // for unknown characters
  bool has_bytes;
};

// The longest pieces first. A word of more characters is unknown.
struct LongestPieces {
  LongestPieces(const std::vector<std::string> &tokens, std::int32_t unknown, int max_word) : vocabulary(tokens, unknown), max_word(max_word) {}

  const Vocabulary vocabulary;
  const int max_word;
};

struct SubwordOptions {
  std::vector<std::string> tokens; // by number, as bytes of a word
  std::vector<NormalizerStep> normalizer;
  std::vector<AddedToken> added, normalized_added; // found in the raw text, and in the normalized text
  Split split;
  bool space_first; // a space is put before a text that does not begin with one
  std::vector<std::int32_t> before, after;
};

class Subword {
public:
  Subword(SubwordOptions options, std::unique_ptr<BytePairs> pairs, std::unique_ptr<Unigram> unigram, std::unique_ptr<LongestPieces> longest);
  ~Subword();

  // Encodes all texts and writes the start of each to `offsets` [texts + 1]. `limit` counts all tokens of a text.
  EncodedTexts encode(const std::vector<Text> &texts, std::int64_t *offsets, std::int64_t limit, int threads);

  const SubwordOptions options;

private:
  struct Worker;
  struct Merge {
    std::uint64_t pair; // left << 32 | right
    std::uint32_t rank;
    std::int32_t token; // -1: an empty slot
  };
  class Scan;

  bool encode_text(Worker &worker, const Text &text, std::int64_t limit) const;
  void encode_word(Worker &worker, std::string_view word, std::size_t limit) const;
  void merge_pairs(Worker &worker, std::string_view word) const;
  void merge_many(Worker &worker, std::vector<std::int32_t> &symbols) const;
  void find_best_pieces(Worker &worker, std::string_view word, std::size_t limit) const;
  void find_longest_pieces(Worker &worker, std::string_view word) const;
  void put_piece(Worker &worker, std::string_view piece) const;
  const Merge *find_merge(std::int32_t left, std::int32_t right) const;
  bool check_cuts() const;

  const std::unique_ptr<BytePairs> pairs;
  const std::unique_ptr<Unigram> unigram;
  const std::unique_ptr<LongestPieces> longest;
  const Normalizer normalizer;
  const AddedTokens added, normalized_added;
  const Trie trie;
  std::vector<Merge> merges; // by hash
  int merge_shift = 0;
  double unknown_score = 0;
  bool cuts = false; // whether a long text may be encoded in parts
  WorkerPool<Worker> workers;
};

} // namespace ridgeline
