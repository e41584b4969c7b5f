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

// Loops of one name that were compiled once per set, each into the set's namespace: `name_of(isa)` chooses among them.
// To be written inside namespace ridgeline.
#if defined(__x86_64__)
#define RIDGELINE_COMPILED_PER_ISA(Type, name)                                                                         \
  namespace baseline { extern const Type name; }                                                                       \
  namespace avx2 { extern const Type name; }                                                                           \
  namespace avx512 { extern const Type name; }                                                                         \
  static inline const Type &name##_of(Isa isa) {                                                                       \
    return isa == Isa::avx512 ? avx512::name : isa == Isa::avx2 ? avx2::name : baseline::name;                         \
  }
#else
#define RIDGELINE_COMPILED_PER_ISA(Type, name)                                                                         \
  namespace baseline { extern const Type name; }                                                                       \
  static inline const Type &name##_of(Isa) { return baseline::name; }
#endif
