// A busy loop of known length and known result: the lab measures itself with it.
#pragma once

#include <cstdint>

namespace ridgeline {

// Runs `steps` steps of Knuth's 64-bit linear congruential generator. Each step needs the result of the previous step, so
// no compiler and no CPU can shorten the loop. A test computes the result by its closed form.
std::uint64_t spin(std::uint64_t steps, std::uint64_t seed);

} // namespace ridgeline
