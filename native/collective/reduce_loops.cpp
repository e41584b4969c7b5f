// Compiled once per instruction set (CMakeLists.txt), each time in a namespace of its own.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "collective/reduce.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

#if defined(__aarch64__)
using Half = __fp16;
#else
using Half = _Float16;
#endif

struct Brain {
  std::uint16_t bits;
};

inline float wide(Half v) { return float(v); }
inline float wide(Brain v) {
  const std::uint32_t bits = std::uint32_t(v.bits) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
template <class T> inline T wide(T v) { return v; }

template <class T, class W> inline T narrow(W v) { return T(v); }
template <> inline Brain narrow<Brain, float>(float v) {
  std::uint32_t bits;
  std::memcpy(&bits, &v, 4);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16; // to nearest, ties to even
  return Brain{std::uint16_t(v != v ? 0x7fc0u : rounded)};
}

// Integers wrap around, as in NumPy: they are added as unsigned integers, where C++ defines the overflow.
template <class W> struct Sum {
  static W of(W a, W b) {
    if constexpr (std::is_integral_v<W>) return W(std::make_unsigned_t<W>(a) + std::make_unsigned_t<W>(b));
    else return a + b;
  }
};
template <class W> struct Prod {
  static W of(W a, W b) {
    if constexpr (std::is_integral_v<W>) return W(std::uint64_t(a) * std::uint64_t(b));
    else return a * b;
  }
};
template <class W> struct Min { // NaN on either side gives NaN
  static W of(W a, W b) { return (b < a || b != b) ? b : a; }
};
template <class W> struct Max {
  static W of(W a, W b) { return (b > a || b != b) ? b : a; }
};

constexpr std::size_t kBlock = 512;

template <class T, class Op> void combine(T *to, const T *const *from, int sources, std::size_t count, bool mean) {
  using W = decltype(wide(T{}));
  if (sources == 2 && !mean) {
    const T *a = from[0], *b = from[1];
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) to[i] = narrow<T, W>(Op::of(wide(a[i]), wide(b[i])));
    return;
  }
  W sum[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = std::min(kBlock, count - at);
    for (std::size_t i = 0; i < n; ++i) sum[i] = wide(from[0][at + i]);
    for (int s = 1; s < sources; ++s) {
      const T *more = from[s] + at;
      for (std::size_t i = 0; i < n; ++i) sum[i] = Op::of(sum[i], wide(more[i]));
    }
    if (mean)
      for (std::size_t i = 0; i < n; ++i) sum[i] = W(sum[i] / W(sources));
    for (std::size_t i = 0; i < n; ++i) to[at + i] = narrow<T, W>(sum[i]);
  }
}

template <class T> void reduce_typed(void *to_, const void *const *from_, int sources, std::size_t count, Combine how) {
  using W = decltype(wide(T{}));
  T *to = static_cast<T *>(to_);
  const T *const *from = reinterpret_cast<const T *const *>(from_);
  switch (how) {
  case Combine::sum: return combine<T, Sum<W>>(to, from, sources, count, false);
  case Combine::avg: return combine<T, Sum<W>>(to, from, sources, count, true);
  case Combine::prod: return combine<T, Prod<W>>(to, from, sources, count, false);
  case Combine::min: return combine<T, Min<W>>(to, from, sources, count, false);
  case Combine::max: return combine<T, Max<W>>(to, from, sources, count, false);
  }
}

void reduce(void *to, const void *const *from, int sources, std::size_t count, Number type, Combine how) {
  switch (type) {
  case Number::f16: return reduce_typed<Half>(to, from, sources, count, how);
  case Number::bf16: return reduce_typed<Brain>(to, from, sources, count, how);
  case Number::f32: return reduce_typed<float>(to, from, sources, count, how);
  case Number::f64: return reduce_typed<double>(to, from, sources, count, how);
  case Number::i8: return reduce_typed<std::int8_t>(to, from, sources, count, how);
  case Number::i16: return reduce_typed<std::int16_t>(to, from, sources, count, how);
  case Number::i32: return reduce_typed<std::int32_t>(to, from, sources, count, how);
  case Number::i64: return reduce_typed<std::int64_t>(to, from, sources, count, how);
  case Number::u8: return reduce_typed<std::uint8_t>(to, from, sources, count, how);
  case Number::bytes: return;
  }
}

} // namespace

extern const ReduceLoops compiled_reduce_loops;
const ReduceLoops compiled_reduce_loops{reduce};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
