// Instruction sets: CMakeLists.txt compiles each loop file once per set, and the strongest set of this CPU is chosen at
// run time. RIDGELINE_ISA=baseline in the environment forces a set, so that tests can run all of them.
#pragma once

#include <string>
#include <vector>

namespace ridgeline {

enum class Isa { baseline, avx2, avx512 };

const char *name(Isa isa);
std::vector<Isa> supported_isas(); // compiled in and usable on this CPU, weakest first
Isa chosen_isa();                  // the strongest supported set, or the set that RIDGELINE_ISA names
Isa parse_isa(const std::string &word); // "" means the chosen set; throws std::invalid_argument for an unknown set

} // namespace ridgeline

// Declares loops that are compiled once per set, each time in the namespace of the set: `select_<name>(isa)` returns
// those of a set. For loops where AVX-512 was measured to bring less than 10 %, the second form uses the AVX2 loops.
// Write both inside namespace ridgeline.
#if defined(__x86_64__)
#define RIDGELINE_LOOPS(Type, name)                                                                                    \
  namespace baseline { extern const Type name; }                                                                       \
  namespace avx2 { extern const Type name; }                                                                           \
  namespace avx512 { extern const Type name; }                                                                         \
  static inline const Type &select_##name(Isa isa) {                                                                   \
    return isa == Isa::avx512 ? avx512::name : isa == Isa::avx2 ? avx2::name : baseline::name;                         \
  }
#define RIDGELINE_LOOPS_WITHOUT_AVX512(Type, name)                                                                     \
  namespace baseline { extern const Type name; }                                                                       \
  namespace avx2 { extern const Type name; }                                                                           \
  static inline const Type &select_##name(Isa isa) { return isa == Isa::baseline ? baseline::name : avx2::name; }
#else
#define RIDGELINE_LOOPS(Type, name)                                                                                    \
  namespace baseline { extern const Type name; }                                                                       \
  static inline const Type &select_##name(Isa) { return baseline::name; }
#define RIDGELINE_LOOPS_WITHOUT_AVX512(Type, name) RIDGELINE_LOOPS(Type, name)
#endif
