#include "tokenizer/vocabulary.hpp"

#include <algorithm>
#include <deque>
#include <numeric>
#include <stdexcept>

namespace ridgeline {
namespace {

constexpr std::int32_t kNone = -1;
const char kPrefix[] = "##";

} // namespace

Vocabulary::Vocabulary(const std::vector<std::string> &tokens, std::int32_t unknown)
    : unknown_token(unknown), token_count(std::int32_t(tokens.size())) {
  build_words(tokens);
  build_trie(tokens);
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

void Vocabulary::build_trie(const std::vector<std::string> &tokens) {
  if (tokens.size() >= std::size_t(1) << 22) throw std::invalid_argument("a vocabulary may have at most four million tokens");
  std::vector<std::int32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return tokens[a] < tokens[b]; });

  struct Span { // tokens with a common prefix, and the node of the prefix
    std::size_t from, to, depth, node;
  };
  // Node 0 is the root. Nodes without children have base 0, so no child may lie at base 0.
  nodes.assign(2048, Node{});
  std::vector<bool> taken(nodes.size()), based(nodes.size());
  taken[0] = based[0] = true;
  std::size_t cursor = 1, end = 1; // few nodes below the cursor are free
  // Breadth first: the nodes next to the root, which every word uses, are close in memory.
  std::deque<Span> open{{0, order.size(), 0, 0}};
  std::vector<Span> children;
  std::vector<std::uint8_t> bytes;
  while (!open.empty()) {
    Span span = open.front();
    open.pop_front();
    for (; span.from < span.to && tokens[order[span.from]].size() == span.depth; ++span.from)
      if (span.depth) nodes[span.node].rest = (nodes[span.node].rest & 0x1ff) | std::uint32_t(order[span.from] + 1) << 9;
    bytes.clear();
    children.clear();
    for (std::size_t k = span.from; k < span.to; ++k) {
      const auto byte = std::uint8_t(tokens[order[k]][span.depth]);
      if (bytes.empty() || bytes.back() != byte) {
        if (!children.empty()) children.back().to = k;
        bytes.push_back(byte);
        children.push_back({k, span.to, span.depth + 1, 0});
      }
    }
    if (bytes.empty()) continue;
    std::size_t place = std::max<std::size_t>(cursor, bytes[0] + 1u), tried = 0, full = 0;
    for (;; ++place, ++tried) {
      if (place + 512 > nodes.size()) {
        nodes.resize(2 * nodes.size());
        taken.resize(nodes.size());
        based.resize(nodes.size());
      }
      const std::size_t base = place - bytes[0];
      if (taken[place]) ++full;
      else if (!based[base] && std::none_of(bytes.begin(), bytes.end(), [&](std::uint8_t b) { return taken[base + b]; })) break;
    }
    if (tried > 64 && full * 20 >= tried * 19) cursor = place;
    const std::size_t base = place - bytes[0];
    based[base] = true;
    nodes[span.node].base = std::uint32_t(base);
    for (std::size_t k = 0; k < bytes.size(); ++k) {
      children[k].node = base + bytes[k];
      taken[base + bytes[k]] = true;
      nodes[base + bytes[k]].rest = 0x100u | bytes[k];
    }
    end = std::max<std::size_t>(end, base + 256);
    while (taken[cursor]) ++cursor;
    open.insert(open.end(), children.begin(), children.end());
  }
  nodes.resize(std::max<std::size_t>(end, 256)); // every base + byte is a valid index
  nodes.shrink_to_fit();

  outer = inner = nodes[0].base;
  for (const char *c = kPrefix; *c; ++c) {
    const Node node = nodes[inner + std::uint8_t(*c)];
    inner = node.is(std::uint8_t(*c)) ? node.base : 0;
  }
}

} // namespace ridgeline
