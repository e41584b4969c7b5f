// Instruction sets: each loop file is compiled once per set, and the best one this CPU has is chosen at
// run time. RIDGELINE_ISA=baseline in the environment forces one, so that tests can walk all of them.
#pragma once

#include <string>
#include <vector>

namespace ridgeline {

enum class Isa { baseline, avx2, avx512 };

const char *name(Isa isa);
std::vector<Isa> supported(); // compiled in and usable on this CPU, weakest first
Isa chosen();                 // the strongest supported one, or what RIDGELINE_ISA says
Isa parse(const std::string &word); // "" is the chosen one; throws std::invalid_argument otherwise

} // namespace ridgeline
