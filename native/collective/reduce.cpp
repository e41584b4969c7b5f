#include "collective/reduce.hpp"

namespace ridgeline {

RIDGELINE_LOOPS(ReduceLoops, compiled_reduce_loops)

ReduceLoops reduce_loops(Isa isa) { return select_compiled_reduce_loops(isa); }

std::size_t size_of(Number type) {
  switch (type) {
  case Number::f64: case Number::i64: return 8;
  case Number::f32: case Number::i32: return 4;
  case Number::f16: case Number::bf16: case Number::i16: return 2;
  default: return 1;
  }
}

} // namespace ridgeline
