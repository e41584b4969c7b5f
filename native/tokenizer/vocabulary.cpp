#include "tokenizer/vocabulary.hpp"

#include <algorithm>

namespace ridgeline {
namespace {

constexpr std::int32_t kNone = -1;
const char kPrefix[] = "##";

} // namespace

Vocabulary::Vocabulary(const std::vector<std::string> &tokens, std::int32_t unknown)
    : trie(tokens), unknown_token(unknown), token_count(std::int32_t(tokens.size())) {
  build_words(tokens);
  find_bases();
}

void Vocabulary::build_words(const std::vector<std::string> &tokens) {
  const auto is_complete_word = [](const std::string &t) {
    return !t.empty() && t.size() <= sizeof(Key) && t.back() && (t.size() < 3 || t.compare(0, 2, kPrefix));
  };
  const auto count = std::size_t(std::count_if(tokens.begin(), tokens.end(), is_complete_word));
  int bits = 4;
  while ((std::size_t(1) << bits) < 2 * count) ++bits;
  shift = 64 - bits;
  // Extra slots at the end, so that a search never wraps around.
  words.assign((std::size_t(1) << bits) + count + 1, Word{{0, 0}, kNone});
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!is_complete_word(tokens[id])) continue;
    Key key{0, 0};
    std::memcpy(&key, tokens[id].data(), tokens[id].size());
    std::size_t k = key.hash() >> shift;
    while (words[k].token >= 0 && !(words[k].key == key)) ++k;
    words[k] = {key, std::int32_t(id)}; // the last of equal tokens counts
  }
  std::size_t used = words.size();
  while (used > (std::size_t(1) << bits) && words[used - 1].token < 0) --used;
  words.resize(used + 1, Word{{0, 0}, kNone});
  words.shrink_to_fit();
  tags.resize(words.size());
  for (std::size_t k = 0; k < words.size(); ++k) tags[k] = words[k].token < 0 ? 0 : tag(words[k].key.hash());
}

void Vocabulary::find_bases() {
  outer = inner = trie.root();
  for (const char *c = kPrefix; *c; ++c) {
    const Trie::Node node = trie.data()[inner + std::uint8_t(*c)];
    inner = node.is(std::uint8_t(*c)) ? node.base : 0;
  }
}

} // namespace ridgeline
