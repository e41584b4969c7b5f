// Products of tokens and weights. A panel of 12 outputs is multiplied with all groups of tokens, kSpan terms at a time:
// its 9 KB stay in the first cache.
#include "encoder/steps.hpp"

#if RIDGELINE_HALF

namespace ridgeline {
namespace {

// max(x, 0) - t·Φ(-t), t = |x| up to 3.75: the error is below 4e-4 for x < 0 and close to that of float16 above. Φ
// is a polynomial with error 1e-4, written as a product of quadratics: a sum of powers would lose its digits in float16.
inline Eight gelu(Eight x) {
  const auto constant_vector = [](float v) { return vdupq_n_f16(Half(v)); };
  const Eight t = minimum(absolute(x), constant_vector(3.75f));
  const auto factor = [&](float linear_term, float constant) { return fma(fma(constant_vector(constant), t, constant_vector(linear_term)), t, t); };
  const Eight partial = t * constant_vector(7.5356627e-4f) * factor(-5.7173336f, 9.4278514f) * factor(-7.0286664f, 12.482112f);
  return fma(maximum(x, constant_vector(0)), partial, factor(-2.3124639f, -5.6102879f));
}

// The formula by tanh: x·σ(2u), u = √(2/π)·(x + 0.044715·x³).
inline float32x4_t gelu_by_tanh(float32x4_t x) {
  constexpr float kTwice = 2.3022082f; // 2·√(2/π)·log2(e)
  const float32x4_t u = vmulq_f32(vmulq_n_f32(x, kTwice), vfmaq_n_f32(vdupq_n_f32(1.0f), vmulq_f32(x, x), 0.044715f));
  const float32x4_t e = power_of_two(vnegq_f32(vabsq_f32(u))), one = vdupq_n_f32(1.0f);
  const float32x4_t up = vbslq_f32(vcltq_f32(u, vdupq_n_f32(0.0f)), e, one);
  return vmulq_f32(x, vdivq_f32(up, vaddq_f32(one, e)));
}

template <Activation Kind> inline Eight activate(Eight x) {
  if constexpr (Kind == Activation::gelu) return gelu(x);
  if constexpr (Kind == Activation::tanh) return narrow(each(widen(x), gelu_by_tanh));
  if constexpr (Kind == Activation::relu) return maximum(x, vdupq_n_f16(0));
  return x;
}

// Adds all spans into the first and applies the activation.
template <Activation Kind> void finish(const HalfLinear &layer, std::size_t panel, std::size_t groups, Half *y) {
  const std::size_t row = panel * kRows, rows = std::min(kRows, layer.out - row), more = spans(layer) - 1;
  if (Kind == Activation::none && !more) return;
  for (std::size_t g = 0; g < groups; ++g) {
    Half *at = y + (g * layer.out + row) * kLanes;
    for (const Half *end = at + rows * kLanes; at < end; at += kLanes) {
      Eight v = vld1q_f16(at);
      if (more) {
        Wide sum = widen(v);
        for (std::size_t span = 1; span <= more; ++span) sum = sum + widen(at + span * groups * layer.out * kLanes);
        v = narrow(sum);
      }
      vst1q_f16(at, activate<Kind>(v));
    }
  }
}

} // namespace

void product(const HalfLinear &layer, std::size_t panel, const Half *x, std::size_t groups, Half *sums) {
  const std::size_t row = panel * kRows, rows = std::min(kRows, layer.out - row);
  const Half *weight = reinterpret_cast<const Half *>(layer.weight.data()) + row * layer.in;
  const Half *bias = reinterpret_cast<const Half *>(layer.bias.data()) + row;
  for (std::size_t span = 0; span < layer.in; span += kSpan) {
    for (std::size_t g = 0; g < groups; ++g) {
      Half *to = sums + ((span / kSpan * groups + g) * layer.out + row) * kLanes, part[kRows * kLanes];
      tile_12<kShort>(span ? kZeros : bias, weight + span * kRows, x + (g * layer.in + span) * kLanes,
                      std::min(kSpan, layer.in - span), rows < kRows ? part : to, layer.in * kLanes);
      if (rows < kRows) std::copy(part, part + rows * kLanes, to);
    }
  }
}

void product(const HalfLinear &layer, std::size_t panel, const Half *x, std::size_t groups, Activation activation,
             Half *y) {
  product(layer, panel, x, groups, y);
  switch (activation) {
  case Activation::gelu: return finish<Activation::gelu>(layer, panel, groups, y);
  case Activation::tanh: return finish<Activation::tanh>(layer, panel, groups, y);
  case Activation::relu: return finish<Activation::relu>(layer, panel, groups, y);
  case Activation::none: return finish<Activation::none>(layer, panel, groups, y);
  }
}

} // namespace ridgeline

#endif
