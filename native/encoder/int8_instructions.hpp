// Which instructions of this CPU multiply bytes. All of them add whole numbers exactly, so results have the same bits.
#pragma once

#include <string>
#include <vector>

#include "threads/instruction_set.hpp"

namespace ridgeline {

enum class Int8Instructions { plain, sdot, avx_vnni, vnni, amx };

const char *name(Int8Instructions instructions);
std::vector<Int8Instructions> supported_int8(Isa isa); // for loops of this set, slowest first; plain: none of them
// "" means the fastest, or what RIDGELINE_INT8 names; throws std::invalid_argument if this CPU lacks the instructions.
Int8Instructions parse_int8(const std::string &word, Isa isa);

} // namespace ridgeline
