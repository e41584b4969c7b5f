// Sum, product, minimum, maximum and mean of several arrays, element by element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "threads/instruction_set.hpp"

namespace ridgeline {

enum class Number : std::uint32_t { f16, bf16, f32, f64, i8, i16, i32, i64, u8, bytes };
enum class Combine : std::uint32_t { sum, prod, min, max, avg };

std::size_t size_of(Number type);

struct ReduceLoops {
  // to[i] = from[0][i] ∘ from[1][i] ∘ … of `sources` arrays; `to` may be one of them. Halves are added in float32 and
  // rounded once. `bytes` has no reduction.
  void (*reduce)(void *to, const void *const *from, int sources, std::size_t count, Number type, Combine how);
};
ReduceLoops reduce_loops(Isa isa);

} // namespace ridgeline
