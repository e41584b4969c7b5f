// A busy loop of known length and known answer: the lab's own test subject.
#pragma once

#include <cstdint>

namespace ridgeline {

// `steps` steps of Knuth's 64-bit linear congruential generator. Each step needs the one before, so no
// compiler or CPU can shorten it; the answer has a closed form that a test computes by itself.
std::uint64_t spin(std::uint64_t steps, std::uint64_t seed);

} // namespace ridgeline
