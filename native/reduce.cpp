#include "reduce.hpp"

namespace ridgeline {

RIDGELINE_COMPILED_PER_ISA(ReduceLoops, loops_of_reduce)

ReduceLoops reduce_loops(Isa isa) { return loops_of_reduce_of(isa); }

std::size_t size_of(Number type) {
  switch (type) {
  case Number::f64: case Number::i64: return 8;
  case Number::f32: case Number::i32: return 4;
  case Number::f16: case Number::bf16: case Number::i16: return 2;
  default: return 1;
  }
}

} // namespace ridgeline
