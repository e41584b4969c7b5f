// SHA-256 for the ledger: many short messages, each after one byte that separates leaves from nodes (RFC 6962).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ridgeline {

// Folds `blocks` blocks of 64 bytes into `state`.
using Compress = void (*)(std::uint32_t state[8], const std::uint8_t *data, std::size_t blocks);

std::vector<std::string> sha256_engines();    // usable on this CPU, weakest first: portable, sha2 (Arm) or sha-ni (x86)
Compress sha256_engine(const std::string &name); // "" is the strongest, or portable under RIDGELINE_ISA=baseline

void sha256(Compress compress, const void *data, std::size_t size, std::uint8_t out[32]);
void leaf_hash(Compress compress, const void *entry, std::size_t size, std::uint8_t out[32]); // SHA-256(0x00 ‖ entry)
void node_hash(Compress compress, const std::uint8_t children[64], std::uint8_t out[32]);     // SHA-256(0x01 ‖ left ‖ right)

// The Merkle tree hash over `count` contiguous hashes, which it overwrites. `count` is 1 or more.
void tree_hash(Compress compress, std::uint8_t *hashes, std::size_t count, std::uint8_t out[32]);

} // namespace ridgeline
