// The inner loop of all products in float16: a tile of sums, 8 or 12 rows of factors × eight tokens.
//
// Sums in float16 must stay short: the error grows with (terms in a register + registers added up). So each row has two
// registers: one sums `Short` terms, the other those sums. A tile has at most kSpan terms; the caller adds
// several tiles in float32. A term costs two or three loads and one product per row, of which a Neoverse-N1 does two per cycle:
// with 12 rows and 32 terms it reaches 95 % of its peak. (With 24 rows the second sums lie in memory and take twice the
// time: 93 %. With 24 terms: 94 %.)
#pragma once

#include "encoder/encoder.hpp"

#if RIDGELINE_HALF

#include <arm_neon.h>

#include <algorithm>
#include <cstddef>

namespace ridgeline {

using Half = float16_t;
using Eight = float16x8_t;

constexpr std::size_t kLanes = 8;               // tokens of a group
constexpr std::size_t kShort = 32, kSpan = 384; // terms
constexpr Half kZeros[12] = {};               // start values

// In assembler, because compilers load too many factors early and spill them.
// v0 to v2: factors, a lane each · v3, v4: tokens · v8 to v19: sums of a short_terms terms · v20 to v31: sums of those
#define ROW(op, sum, x, from, lane) op " v" #sum ".8h, v" #x ".8h, v" #from ".h[" #lane "]\n"
#define ADD(sum, all) "fadd v" #all ".8h, v" #all ".8h, v" #sum ".8h\n"
#define ADD_8 ADD(8, 20) ADD(9, 21) ADD(10, 22) ADD(11, 23) ADD(12, 24) ADD(13, 25) ADD(14, 26) ADD(15, 27)
#define ADD_4 ADD(16, 28) ADD(17, 29) ADD(18, 30) ADD(19, 31)
#define BEGIN(all) "ld1r {v" #all ".8h}, [%[start]], #2\n"
#define BEGIN_8 BEGIN(20) BEGIN(21) BEGIN(22) BEGIN(23) BEGIN(24) BEGIN(25) BEGIN(26) BEGIN(27)
#define BEGIN_4 BEGIN(28) BEGIN(29) BEGIN(30) BEGIN(31)
#define STORE(all, next, at) "stp q" #all ", q" #next ", [%[to], #" #at "]\n"
#define STORE_8 STORE(20, 21, 0) STORE(22, 23, 32) STORE(24, 25, 64) STORE(26, 27, 96)
#define STORE_4 STORE(28, 29, 128) STORE(30, 31, 160)
#define CLOBBERED                                                                                                      \
  "v0", "v1", "v2", "v3", "v4", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19",      \
      "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "memory", "cc"

// 8 rows, a term at a time.
#define TERM(op)                                                                                                       \
  "ldr q3, [%[x]], #16\n ldr q0, [%[w]]\n add %[w], %[w], %[step]\n"                                                   \
  ROW(op, 8, 3, 0, 0) ROW(op, 9, 3, 0, 1) ROW(op, 10, 3, 0, 2) ROW(op, 11, 3, 0, 3)                                    \
  ROW(op, 12, 3, 0, 4) ROW(op, 13, 3, 0, 5) ROW(op, 14, 3, 0, 6) ROW(op, 15, 3, 0, 7)

// 12 rows, two terms at a time: 24 factors are three registers. FIRST also adds the sums of the previous terms.
#define TWO                                                                                                            \
  "ldp q3, q4, [%[x]], #32\n ldp q0, q1, [%[w]]\n ldr q2, [%[w], #32]\n"                                               \
  "prfm pldl1keep, [%[w], %[next]]\n add %[w], %[w], #48\n"
#define FETCH "prfm pldl1keep, [%[x], %[ahead]]\n"
#define ODD(op)                                                                                                        \
  ROW(op, 8, 3, 0, 0) ROW(op, 9, 3, 0, 1) ROW(op, 10, 3, 0, 2) ROW(op, 11, 3, 0, 3)                                    \
  ROW(op, 12, 3, 0, 4) ROW(op, 13, 3, 0, 5) ROW(op, 14, 3, 0, 6) ROW(op, 15, 3, 0, 7)                                  \
  ROW(op, 16, 3, 1, 0) ROW(op, 17, 3, 1, 1) ROW(op, 18, 3, 1, 2) ROW(op, 19, 3, 1, 3)
#define EVEN                                                                                                           \
  ROW("fmla", 8, 4, 1, 4) ROW("fmla", 9, 4, 1, 5) ROW("fmla", 10, 4, 1, 6) ROW("fmla", 11, 4, 1, 7)                    \
  ROW("fmla", 12, 4, 2, 0) ROW("fmla", 13, 4, 2, 1) ROW("fmla", 14, 4, 2, 2) ROW("fmla", 15, 4, 2, 3)                  \
  ROW("fmla", 16, 4, 2, 4) ROW("fmla", 17, 4, 2, 5) ROW("fmla", 18, 4, 2, 6) ROW("fmla", 19, 4, 2, 7)
#define FIRST(sum, all, from, lane) ADD(sum, all) ROW("fmul", sum, 3, from, lane)
#define FIRST_12                                                                                                       \
  FIRST(8, 20, 0, 0) FIRST(9, 21, 0, 1) FIRST(10, 22, 0, 2) FIRST(11, 23, 0, 3) FIRST(12, 24, 0, 4)                    \
  FIRST(13, 25, 0, 5) FIRST(14, 26, 0, 6) FIRST(15, 27, 0, 7) FIRST(16, 28, 1, 0) FIRST(17, 29, 1, 1)                  \
  FIRST(18, 30, 1, 2) FIRST(19, 31, 1, 3)

// to [8][8] = start[row] + Σ over terms of w[term · step + row] · x[term][8]; terms are a multiple of Short.
template <int Short>
inline void tile_8(const Half *start, const Half *w, std::size_t step, const Half *x, std::size_t terms, Half *to) {
  asm volatile(BEGIN_8 "1:\n" TERM("fmul") ".rept %c[more]\n" TERM("fmla") ".endr\n" ADD_8
               "subs %[terms], %[terms], %[short_terms]\n b.ne 1b\n" STORE_8
               : [start] "+&r"(start), [w] "+&r"(w), [x] "+&r"(x), [terms] "+&r"(terms)
               : [to] "r"(to), [step] "r"(2 * step), [short_terms] "i"(Short), [more] "i"(Short - 1)
               : CLOBBERED);
}

// The same for 12 rows whose factors are contiguous by term. It prefetches the numbers `ahead` of x and the factors of the
// next tile.
template <int Short>
inline void tile_12(const Half *start, const Half *w, const Half *x, std::size_t terms, Half *to, std::size_t ahead) {
  static_assert(Short % 4 == 0);
  const std::size_t next = 2 * 12 * terms;
  asm volatile(BEGIN_8 BEGIN_4 TWO FETCH ODD("fmul") EVEN "b 2f\n"
               "1:\n" TWO FETCH FIRST_12 EVEN
               "2:\n" TWO ODD("fmla") EVEN ".rept %c[more]\n" TWO FETCH ODD("fmla") EVEN TWO ODD("fmla") EVEN ".endr\n"
               "subs %[terms], %[terms], %[short_terms]\n b.ne 1b\n" ADD_8 ADD_4 STORE_8 STORE_4
               : [start] "+&r"(start), [w] "+&r"(w), [x] "+&r"(x), [terms] "+&r"(terms)
               : [to] "r"(to), [next] "r"(next), [ahead] "r"(2 * ahead), [short_terms] "i"(Short), [more] "i"(Short / 4 - 1)
               : CLOBBERED);
}

#undef ROW
#undef ADD
#undef ADD_8
#undef ADD_4
#undef BEGIN
#undef BEGIN_8
#undef BEGIN_4
#undef STORE
#undef STORE_8
#undef STORE_4
#undef CLOBBERED
#undef TERM
#undef TWO
#undef FETCH
#undef ODD
#undef EVEN
#undef FIRST
#undef FIRST_12

} // namespace ridgeline

#endif
