#include "threads/spin_loop.hpp"

namespace ridgeline {
namespace {

inline void step(std::uint64_t &x) {
  x = x * 6364136223846793005ULL + 1442695040888963407ULL;
  asm volatile("" : "+r"(x)); // stops the compiler from folding several steps into one
}

} // namespace

std::uint64_t spin(std::uint64_t steps, std::uint64_t seed) {
  std::uint64_t x = seed, i = 0;
  // Sixteen steps per iteration: with one step, the loop counter and the branch compete with the chain, and the same
  // code ran at 4, 4.5 or 5 cycles a step from process to process (measured on a Neoverse-N1).
  for (; i + 16 <= steps; i += 16) {
    step(x), step(x), step(x), step(x), step(x), step(x), step(x), step(x);
    step(x), step(x), step(x), step(x), step(x), step(x), step(x), step(x);
  }
  for (; i < steps; ++i) step(x);
  return x;
}

} // namespace ridgeline
