#include "tokenizer/trie.hpp"

#include <algorithm>
#include <deque>
#include <numeric>
#include <stdexcept>

namespace ridgeline {

Trie::Trie(const std::vector<std::string> &tokens) {
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
}

} // namespace ridgeline
