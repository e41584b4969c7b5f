#include "ledger/sha256.hpp"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "threads/instruction_set.hpp"
#include "ledger/sha256_engines.hpp"

namespace ridgeline {
namespace {

constexpr std::uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void put_big_endian(std::uint8_t *to, std::uint64_t value, int bytes) {
  for (int k = bytes - 1; k >= 0; --k, value >>= 8) to[k] = std::uint8_t(value);
}

void finish(const std::uint32_t state[8], std::uint8_t out[32]) {
  for (int k = 0; k < 8; ++k) put_big_endian(out + 4 * k, state[k], 4);
}

// Hashes `heads` bytes of `head` (at most one), then `data`.
void hash(Compress compress, const std::uint8_t *head, std::size_t heads, const std::uint8_t *data, std::size_t size,
          std::uint8_t out[32]) {
  std::uint32_t state[8];
  std::memcpy(state, kStart, sizeof state);
  const std::uint64_t bits = 8 * std::uint64_t(heads + size);
  std::uint8_t block[128];
  std::size_t filled = heads;
  if (heads) block[0] = head[0];
  if (heads && size >= 64 - heads) {
    std::memcpy(block + heads, data, 64 - heads);
    compress(state, block, 1);
    data += 64 - heads;
    size -= 64 - heads;
    filled = 0;
  }
  if (filled == 0) {
    compress(state, data, size / 64);
    data += size / 64 * 64;
    size %= 64;
  }
  if (size) std::memcpy(block + filled, data, size);
  filled += size;
  block[filled++] = 0x80;
  const std::size_t end = filled <= 56 ? 64 : 128;
  std::memset(block + filled, 0, end - filled);
  put_big_endian(block + end - 8, bits, 8);
  compress(state, block, end / 64);
  finish(state, out);
}

} // namespace

std::vector<std::string> sha256_engines() {
  std::vector<std::string> names{"portable"};
  if (sha256_hardware()) names.emplace_back(sha256_hardware_name());
  return names;
}

Compress sha256_engine(const std::string &name) {
  static const bool plain = [] {
    const std::vector<Isa> sets = supported_isas();
    return sets.size() > 1 ? chosen_isa() == Isa::baseline : std::getenv("RIDGELINE_ISA") != nullptr && *std::getenv("RIDGELINE_ISA");
  }();
  if (name.empty()) return sha256_hardware() && !plain ? sha256_hardware() : sha256_portable;
  if (name == "portable") return sha256_portable;
  if (sha256_hardware() && name == sha256_hardware_name()) return sha256_hardware();
  throw std::invalid_argument("SHA-256 by '" + name + "' is not on this CPU");
}

void sha256(Compress compress, const void *data, std::size_t size, std::uint8_t out[32]) {
  hash(compress, nullptr, 0, static_cast<const std::uint8_t *>(data), size, out);
}

void leaf_hash(Compress compress, const void *entry, std::size_t size, std::uint8_t out[32]) {
  const std::uint8_t head = 0;
  hash(compress, &head, 1, static_cast<const std::uint8_t *>(entry), size, out);
}

void node_hash(Compress compress, const std::uint8_t children[64], std::uint8_t out[32]) {
  // 65 bytes always: one block of 0x01 and 63 bytes, one of the last byte and a padding that never changes.
  std::uint32_t state[8];
  std::memcpy(state, kStart, sizeof state);
  std::uint8_t block[128] = {};
  block[0] = 1;
  std::memcpy(block + 1, children, 64);
  block[65] = 0x80;
  put_big_endian(block + 120, 65 * 8, 8);
  compress(state, block, 2);
  finish(state, out);
}

void tree_hash(Compress compress, std::uint8_t *hashes, std::size_t count, std::uint8_t out[32]) {
  // Hashes pairs; an odd last hash moves up unchanged. This is the tree that splits at the largest power of two.
  while (count > 1) {
    const std::size_t pairs = count / 2;
    for (std::size_t k = 0; k < pairs; ++k) {
      std::uint8_t parent[32];
      node_hash(compress, hashes + 64 * k, parent);
      std::memcpy(hashes + 32 * k, parent, 32);
    }
    if (count % 2) std::memmove(hashes + 32 * pairs, hashes + 32 * (count - 1), 32);
    count = pairs + count % 2;
  }
  std::memcpy(out, hashes, 32);
}

} // namespace ridgeline
