// Tokens in a trie of bytes, as a double array.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ridgeline {

class Trie {
public:
  // The child by a byte is at base + byte, if the node there has that byte; no two nodes share a base.
  struct Node {
    std::uint32_t base = 0, rest = 0; // rest: byte, bit 8 if there is a node, token + 1 from bit 9 on
    bool is(std::uint8_t byte) const { return (rest & 0x1ff) == (0x100u | byte); }
    std::int32_t token() const { return std::int32_t(rest >> 9) - 1; }
  };

  // The last of equal tokens counts; empty tokens are left out.
  explicit Trie(const std::vector<std::string> &tokens);

  const Node *data() const { return nodes.data(); }
  std::uint32_t root() const { return nodes[0].base; }

  // The token with exactly these bytes, or -1.
  std::int32_t find(const char *text, std::size_t size) const {
    std::uint32_t base = root();
    std::int32_t token = -1;
    for (std::size_t k = 0; k < size; ++k) {
      const Node node = nodes[base + std::uint8_t(text[k])];
      if (!node.is(std::uint8_t(text[k]))) return -1;
      base = node.base;
      token = node.token();
    }
    return token;
  }

private:
  std::vector<Node> nodes;
};

} // namespace ridgeline
