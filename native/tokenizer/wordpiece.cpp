#include "tokenizer/wordpiece.hpp"

#include <algorithm>

namespace ridgeline {

RIDGELINE_LOOPS_WITHOUT_AVX512(WordPieceLoops, wordpiece_loops)

// A word may exceed the limit by one expanded character, and characters are written eight bytes at a time.
Worker::Worker(int max_word) : word(std::size_t(4 * max_word) + 64), recent(std::size_t(1) << Recent::kBits) {}

WordPiece::WordPiece(const std::vector<std::string> &tokens, const WordPieceOptions &wordpiece_options)
    : vocabulary(tokens, wordpiece_options.unknown), options([&] {
        WordPieceOptions sorted = wordpiece_options;
        std::stable_sort(sorted.added.begin(), sorted.added.end(),
                         [](const Added &a, const Added &b) { return a.text.size() > b.text.size(); });
        return sorted;
      }()),
      table(wordpiece_options.characters, tokens) {
  std::vector<std::int32_t> one(4);
  for (const auto &[c, text] : table.alone()) {
    vocabulary.pieces(text.data(), int(text.size()), one.data());
    table.change(c) = Entry::of(Role::alone, std::uint32_t(one[0]));
  }
  for (const Added &added : options.added) table.change(added.text.at(0)).begins_added();
}

EncodedTexts WordPiece::encode(const std::vector<Text> &texts, std::int64_t *offsets, std::int64_t limit, int threads, Isa isa) {
  const auto loop = select_wordpiece_loops(isa);
  return encode_texts(
      workers, [&] { return std::make_unique<Worker>(options.max_word); },
      [&](Worker &worker, const Text &text) { return loop.encode(*this, worker, text, limit); }, texts, offsets, threads);
}

} // namespace ridgeline
