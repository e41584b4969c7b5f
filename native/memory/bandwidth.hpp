// Loops that measure memory bandwidth: read, write, copy and triad over 64-byte-aligned buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "threads/instruction_set.hpp"

namespace ridgeline {

// Sizes are in bytes; any size works, multiples of 256 are fast. `streaming` stores bypass the caches.
struct BandwidthLoops {
  std::uint64_t (*read)(const void *from, std::size_t bytes); // xor of all 64-bit words (tail bytes last)
  void (*write)(void *to, std::uint64_t word, std::size_t bytes, bool streaming);
  void (*copy)(void *to, const void *from, std::size_t bytes, bool streaming);
  void (*triad)(double *to, const double *a, const double *b, double scale, std::size_t count, bool streaming);
};

BandwidthLoops bandwidth_loops(Isa isa);

enum class Mix { read, write, copy, triad };
Mix parse_mix(const std::string &word);

// Nanoseconds of each of `repeats` rounds in which one pinned thread per entry of `cpus` (-1: not pinned)
// reads or writes its own `bytes` of memory `passes` times. Each thread touches its memory first, under the caller's policy.
std::vector<std::int64_t> time_mix(Mix mix, Isa isa, std::size_t bytes, const std::vector<int> &cpus, int passes,
                                   int repeats, bool streaming);

} // namespace ridgeline
