// The inner loop of everything in float16: a tile of sums, 8 or 12 rows of factors × eight tokens side by side.
//
// Sums in float16 must stay short: the error grows with (terms in a register + registers added up). So each row has two
// registers: one sums `Short` terms, the other those sums. Nobody asks for more than kSpan terms at once; who needs more
// adds in float32. A term costs two or three loads and one product per row, of which a Neoverse-N1 does two in a cycle:
// with 12 rows and 32 terms, 95 % of all it could do. (24 rows have their second sums in memory, where they take twice
// the time: 93 %. Chains of 24 terms: 94 %.)
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

// In assembler: compilers load whatever they can reach first, and spill it.
// v3: tokens · v0, v1: factors of the rows, a lane each · v8 to v19: sums of a few terms · v20 to v31: sums of those
#define ROW(op, sum, from, lane) op " v" #sum ".8h, v3.8h, v" #from ".h[" #lane "]\n"
#define ROWS_8(op)                                                                                                     \
  ROW(op, 8, 0, 0) ROW(op, 9, 0, 1) ROW(op, 10, 0, 2) ROW(op, 11, 0, 3)                                                \
  ROW(op, 12, 0, 4) ROW(op, 13, 0, 5) ROW(op, 14, 0, 6) ROW(op, 15, 0, 7)
#define ROWS_4(op) ROW(op, 16, 1, 0) ROW(op, 17, 1, 1) ROW(op, 18, 1, 2) ROW(op, 19, 1, 3)
#define LOAD_8 "ldr q3, [%[x]], #16\n ldr q0, [%[w]]\n"
#define LOAD_4 "prfm pldl1keep, [%[x], %[ahead]]\n ldr d1, [%[w], #16]\n"
#define NEXT "add %[w], %[w], %[step]\n"
#define TERM_8(op) LOAD_8 NEXT ROWS_8(op)
#define TERM_12(op) LOAD_8 LOAD_4 NEXT ROWS_8(op) ROWS_4(op)

#define BEGIN(all) "ld1r {v" #all ".8h}, [%[start]], #2\n"
#define BEGIN_8 BEGIN(20) BEGIN(21) BEGIN(22) BEGIN(23) BEGIN(24) BEGIN(25) BEGIN(26) BEGIN(27)
#define BEGIN_12 BEGIN_8 BEGIN(28) BEGIN(29) BEGIN(30) BEGIN(31)
#define ADD(sum, all) "fadd v" #all ".8h, v" #all ".8h, v" #sum ".8h\n"
#define ADD_8 ADD(8, 20) ADD(9, 21) ADD(10, 22) ADD(11, 23) ADD(12, 24) ADD(13, 25) ADD(14, 26) ADD(15, 27)
#define ADD_12 ADD_8 ADD(16, 28) ADD(17, 29) ADD(18, 30) ADD(19, 31)
#define STORE(all, next, at) "stp q" #all ", q" #next ", [%[to], #" #at "]\n"
#define STORE_8 STORE(20, 21, 0) STORE(22, 23, 32) STORE(24, 25, 64) STORE(26, 27, 96)
#define STORE_12 STORE_8 STORE(28, 29, 128) STORE(30, 31, 160)

#define TILE(rows)                                                                                                     \
  asm volatile(BEGIN_##rows "1:\n" TERM_##rows("fmul") ".rept %c[more]\n" TERM_##rows("fmla") ".endr\n" ADD_##rows     \
               "subs %[terms], %[terms], %[few]\n b.ne 1b\n" STORE_##rows                                              \
               : [start] "+&r"(start), [w] "+&r"(w), [x] "+&r"(x), [terms] "+&r"(terms)                                \
               : [to] "r"(to), [step] "r"(2 * step), [ahead] "r"(2 * ahead), [few] "i"(Short), [more] "i"(Short - 1)   \
               : "v0", "v1", "v3", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19",   \
                 "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "memory", "cc")

// to [Rows][8] = start[row] + Σ over terms of w[term · step + row] · x[term][8]; terms are a multiple of Short. What
// lies so far ahead of x is fetched on the way, for the next tile.
template <int Rows, int Short>
inline void tile(const Half *start, const Half *w, std::size_t step, const Half *x, std::size_t terms, Half *to,
                 std::size_t ahead = 0) {
  static_assert(Rows == 8 || Rows == 12);
  if constexpr (Rows == 8) TILE(8);
  else TILE(12);
}

#undef ROW
#undef ROWS_8
#undef ROWS_4
#undef LOAD_8
#undef LOAD_4
#undef NEXT
#undef TERM_8
#undef TERM_12
#undef BEGIN
#undef BEGIN_8
#undef BEGIN_12
#undef ADD
#undef ADD_8
#undef ADD_12
#undef STORE
#undef STORE_8
#undef STORE_12
#undef TILE

} // namespace ridgeline

#endif
