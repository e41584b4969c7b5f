// The inner loop of everything in float16: a tile of sums, rows of factors × eight tokens side by side.
//
// Sums in float16 must stay short: the error grows with (terms in a register + registers added up). So each row has two
// registers: one sums Short terms, the other those sums. Nobody asks for more than kSpan terms at once; who needs more
// adds in float32. A term costs a load for the tokens, a load or two for the rows, and one product per row, two of which
// a Neoverse-N1 does in a cycle. More rows would leave no second registers; in memory these take twice as long.
#pragma once

#include "half.hpp"

#if RIDGELINE_HALF

#include <arm_neon.h>

#include <algorithm>
#include <cstddef>

namespace ridgeline {

using Half = float16_t;
using Eight = float16x8_t;

constexpr std::size_t kLanes = 8;               // tokens side by side
constexpr std::size_t kShort = 32, kSpan = 384; // terms
constexpr Half kNothing[12] = {};               // to start with

// In assembler: compilers load whatever they can reach first, and spill it. q0 and q1 hold the rows' factors, q3 the
// tokens, v8 to v19 the sums of a few terms, v20 to v31 the sums of those.
#define ROW(op, row, sum, from, lane) op " v" #sum ".8h, v3.8h, v" #from ".h[" #lane "]\n"
#define FIRST_8(op)                                                                                                    \
  ROW(op, 0, 8, 0, 0) ROW(op, 1, 9, 0, 1) ROW(op, 2, 10, 0, 2) ROW(op, 3, 11, 0, 3)                                    \
  ROW(op, 4, 12, 0, 4) ROW(op, 5, 13, 0, 5) ROW(op, 6, 14, 0, 6) ROW(op, 7, 15, 0, 7)
#define LAST_4(op) ROW(op, 8, 16, 1, 0) ROW(op, 9, 17, 1, 1) ROW(op, 10, 18, 1, 2) ROW(op, 11, 19, 1, 3)
#define TERM_8(op) "ldr q3, [%[x]], #16\n ldr q0, [%[w]]\n add %[w], %[w], %[step]\n" FIRST_8(op)
#define TERM_12(op) "prfm pldl1keep, [%[x], %[ahead]]\n ldr q3, [%[x]], #16\n ldr q0, [%[w]]\n ldr d1, [%[w], #16]\n add %[w], %[w], %[step]\n" FIRST_8(op) LAST_4(op)
#define BEGIN(all) "ld1r {v" #all ".8h}, [%[start]], #2\n"
#define ADD(sum, all) "fadd v" #all ".8h, v" #all ".8h, v" #sum ".8h\n"
#define STORE(all, next, at) "stp q" #all ", q" #next ", [%[to], #" #at "]\n"
#define TILE(TERM, BEGIN_ALL, ADD_ALL, STORE_ALL)                                                                      \
  asm volatile(BEGIN_ALL "1:\n" TERM("fmul") ".rept %c[more]\n" TERM("fmla") ".endr\n" ADD_ALL                         \
               "subs %[terms], %[terms], %[few]\n b.ne 1b\n" STORE_ALL                                                 \
               : [w] "+&r"(w), [x] "+&r"(x), [terms] "+&r"(terms), [start] "+&r"(start)                                \
               : [to] "r"(to), [step] "r"(2 * step), [ahead] "r"(2 * ahead), [few] "i"(Short), [more] "i"(Short - 1)                           \
               : "v0", "v1", "v3", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19",   \
                 "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "memory", "cc")

// to [Rows][8] = start[row] + Σ over terms of w[term · step + row] · x[term][8]; terms are a multiple of Short. What lies
// `ahead` of x is fetched on the way.
template <int Rows, int Short>
inline void tile(const Half *start, const Half *w, std::size_t step, const Half *x, std::size_t terms, Half *to,
                 std::size_t ahead = 0) {
  static_assert(Rows == 8 || Rows == 12);
#define BEGIN_8 BEGIN(20) BEGIN(21) BEGIN(22) BEGIN(23) BEGIN(24) BEGIN(25) BEGIN(26) BEGIN(27)
#define ADD_8 ADD(8, 20) ADD(9, 21) ADD(10, 22) ADD(11, 23) ADD(12, 24) ADD(13, 25) ADD(14, 26) ADD(15, 27)
#define STORE_8 STORE(20, 21, 0) STORE(22, 23, 32) STORE(24, 25, 64) STORE(26, 27, 96)
  if constexpr (Rows == 8) TILE(TERM_8, BEGIN_8, ADD_8, STORE_8);
  else
    TILE(TERM_12, BEGIN_8 BEGIN(28) BEGIN(29) BEGIN(30) BEGIN(31), ADD_8 ADD(16, 28) ADD(17, 29) ADD(18, 30) ADD(19, 31),
         STORE_8 STORE(28, 29, 128) STORE(30, 31, 160));
}

#undef ROW
#undef FIRST_8
#undef LAST_4
#undef TERM_8
#undef TERM_12
#undef BEGIN
#undef BEGIN_8
#undef ADD
#undef ADD_8
#undef STORE
#undef STORE_8
#undef TILE

} // namespace ridgeline

#endif
