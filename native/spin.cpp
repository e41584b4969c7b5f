#include "spin.hpp"

namespace ridgeline {

std::uint64_t spin(std::uint64_t steps, std::uint64_t seed) {
  std::uint64_t x = seed;
  for (std::uint64_t i = 0; i < steps; ++i) {
    x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    asm volatile("" : "+r"(x)); // keeps the compiler from folding several steps into one
  }
  return x;
}

} // namespace ridgeline
