// Texts through an encoder's layers in float16. As many texts as a core's second cache holds go through all layers by
// themselves, a thread each; fewer texts than that make the threads share every step.
#include "half_steps.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "team.hpp"

#if RIDGELINE_HALF
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#endif

namespace ridgeline {

#if RIDGELINE_HALF
namespace {

constexpr std::size_t up_to(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

constexpr std::size_t kTokens = 192;  // that go through the layers together: 2 MiB of buffers
constexpr std::size_t kTextsEach = 4; // for each thread at least, or threads share steps instead of texts
constexpr std::size_t kNormed = 64;   // rows a thread takes at a time
constexpr int kSpins = 4000;          // a moment

template <class Work> void share(int threads, std::size_t pieces, const Work &work) {
  std::atomic<std::size_t> next{0};
  const auto all = [&] {
    for (std::size_t k; (k = next.fetch_add(1)) < pieces;) work(k);
  };
  if (threads < 2 || pieces < 2) all();
  else together(threads, all);
}

// rows [tokens, hidden] → [tokens / 8][features][8], zeros where there is none.
void arrange(const float *rows, std::size_t tokens, std::size_t hidden, std::size_t features, Half *to) {
  for (std::size_t first = 0; first < tokens; first += kLanes, to += features * kLanes) {
    std::fill(to + hidden / 8 * 8 * kLanes, to + features * kLanes, Half(0));
    for (std::size_t f = 0; f < hidden; f += 8) {
      Eight from[8] = {}, turned[8];
      for (std::size_t i = 0; i < std::min(kLanes, tokens - first); ++i) {
        const float *row = rows + (first + i) * hidden;
        float some[8] = {};
        if (f + 8 > hidden) std::copy(row + f, row + hidden, some);
        from[i] = narrow(load(f + 8 > hidden ? some : row + f));
      }
      turn(from, turned);
      for (std::size_t i = 0; i < 8; ++i) vst1q_f16(to + (f + i) * kLanes, turned[i]);
    }
  }
}

void arrange_back(const Half *from, std::size_t tokens, std::size_t hidden, std::size_t features, float *rows) {
  for (std::size_t first = 0; first < tokens; first += kLanes, from += features * kLanes)
    for (std::size_t f = 0; f < hidden; f += 8) {
      Eight columns[8], turned[8];
      for (std::size_t i = 0; i < 8; ++i) columns[i] = vld1q_f16(from + (f + i) * kLanes);
      turn(columns, turned);
      for (std::size_t i = 0; i < std::min(kLanes, tokens - first); ++i) {
        float some[8];
        store(some, widen(turned[i]));
        std::copy(some, some + std::min<std::size_t>(8, hidden - f), rows + (first + i) * hidden + f);
      }
    }
}

// Memory in large pages, where the system has them.
class Block {
public:
  Block() = default;
  Block(const Block &) = delete;
  ~Block() { std::free(memory); }

  void hold(std::size_t numbers) {
    const std::size_t wanted = up_to(numbers * sizeof(Half), kLarge);
    if (wanted <= bytes) return;
    std::free(memory), bytes = 0;
    memory = static_cast<Half *>(std::aligned_alloc(kLarge, wanted));
    if (!memory) throw std::bad_alloc();
    madvise(memory, bytes = wanted, MADV_HUGEPAGE);
  }
  Half *begin() const { return memory; }

private:
  static constexpr std::size_t kLarge = 2 << 20;
  Half *memory = nullptr;
  std::size_t bytes = 0;
};

// Some texts through all layers. Every thread walks through all steps and takes pieces of each; a step has ended when its
// pieces are done, whoever did them. A thread that wakes late finds the first steps done and helps with the others.
class Passage {
public:
  void run(const HalfStack &of, float *rows, const std::int64_t *where, std::size_t count, int threads) {
    stack = &of, offsets = where, texts = count;
    const std::size_t tokens = at(texts), features = up_to(stack->hidden, kShort);
    groups = up_to(tokens, kLanes) / kLanes;
    steps = std::vector<Step>(kSteps * stack->layers.size());
    lay_out(features);
    arrange(rows, tokens, stack->hidden, features, x);
    if (threads < 2) walk();
    else together(threads, [this] { walk(); });
    arrange_back(x, tokens, stack->hidden, features, rows);
  }

private:
  static constexpr std::size_t kSteps = 7; // of a layer
  struct Step {
    std::atomic<std::size_t> next{0}, done{0};
  };

  void walk() {
    Step *step = steps.data();
    for (const HalfLayer &layer : stack->layers) {
      take(*step++, panels(layer.qkv), [&](std::size_t p) { product(layer.qkv, p, x, groups, Activation::none, qkv); });
      take(*step++, texts * stack->heads, [&](std::size_t k) {
        const std::size_t text = k / stack->heads, first = at(text), last = at(text + 1);
        if (first < last) attend(*stack, layer, k % stack->heads, qkv, first, last, mixed);
      });
      add_norm_of(step, layer.out, mixed, layer.out_norm);
      take(*step++, panels(layer.up), [&](std::size_t p) { product(layer.up, p, x, groups, stack->activation, wide); });
      add_norm_of(step, layer.down, wide, layer.down_norm);
    }
  }

  void add_norm_of(Step *&step, const HalfLinear &layer, const Half *from, const HalfNorm &by) {
    take(*step++, panels(layer), [&](std::size_t p) { product(layer, p, from, groups, sums); });
    take(*step++, groups, [&](std::size_t g) {
      add_norm(layer, sums, g, groups, by, stack->hidden, stack->epsilon, x + g * layer.out * kLanes);
    });
  }

  template <class Work> static void take(Step &step, std::size_t pieces, const Work &work) {
    for (std::size_t k; (k = step.next.fetch_add(1)) < pieces; step.done.fetch_add(1)) work(k);
    for (int spins = 0; step.done < pieces; ++spins)
      if (spins > kSpins) std::this_thread::yield(); // who has the last piece may be waiting for this very CPU
  }

  std::size_t at(std::size_t text) const { return std::size_t(offsets[text] - offsets[0]); } // its first token

  // All five in one block of large pages: in small ones they need more entries than the first TLB has (48), and a panel
  // takes a third longer.
  void lay_out(std::size_t features) {
    std::size_t most[5] = {features}; // of numbers for each token: x, qkv, mixed, wide, sums
    for (const HalfLayer &layer : stack->layers) {
      const std::size_t wanted[] = {features, spans(layer.qkv) * layer.qkv.out, layer.out.in,
                                    spans(layer.up) * layer.up.out,
                                    std::max(spans(layer.out), spans(layer.down)) * features};
      for (int i = 0; i < 5; ++i) most[i] = std::max(most[i], wanted[i]);
    }
    room.hold((most[0] + most[1] + most[2] + most[3] + most[4]) * groups * kLanes);
    Half **names[] = {&x, &qkv, &mixed, &wide, &sums}, *at = room.begin();
    for (int i = 0; i < 5; at += most[i++] * groups * kLanes) *names[i] = at;
    std::fill(mixed, mixed + most[2] * groups * kLanes, Half(0)); // nobody writes what follows the last token
  }

  const HalfStack *stack = nullptr;
  const std::int64_t *offsets = nullptr;
  std::size_t texts = 0, groups = 0;
  std::vector<Step> steps;
  Block room;
  Half *x = nullptr, *qkv = nullptr, *mixed = nullptr, *wide = nullptr, *sums = nullptr;
};

inline float total(const float *row, std::size_t width, float off, bool squared) {
  float32x4_t sums[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
  std::size_t k = 0;
  for (; k + 8 <= width; k += 8)
    for (std::size_t i = 0; i < 2; ++i) {
      const float32x4_t v = vsubq_f32(vld1q_f32(row + k + 4 * i), vdupq_n_f32(off));
      sums[i] = squared ? vfmaq_f32(sums[i], v, v) : vaddq_f32(sums[i], v);
    }
  float sum = vaddvq_f32(vaddq_f32(sums[0], sums[1]));
  for (; k < width; ++k) sum += squared ? (row[k] - off) * (row[k] - off) : row[k] - off;
  return sum;
}

} // namespace

bool half_here() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0; }

HalfLinear::HalfLinear(const float *from, const float *biases, std::size_t terms, std::size_t rows)
    : in(up_to(terms, kShort)), out(up_to(rows, kShort)), weight(up_to(out, kRows) * in), bias(up_to(out, kRows)) {
  auto *to = reinterpret_cast<Half *>(weight.data());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t k = 0; k < terms; ++k) to[(r / kRows * in + k) * kRows + r % kRows] = Half(from[r * terms + k]);
  std::copy(biases, biases + rows, reinterpret_cast<Half *>(bias.data()));
}

void add_norm(const HalfLinear &layer, const Half *sums, std::size_t group, std::size_t groups, const HalfNorm &by,
              std::size_t hidden, float epsilon, Half *x) {
  thread_local std::vector<float> room;
  room.resize(std::max(room.size(), hidden * kLanes));
  float *values = room.data();
  const Wide share = all(1 / float(hidden));
  Wide sum = all(0), squares = all(0);
  for (std::size_t f = 0; f < hidden; ++f) {
    Wide v = widen(x + f * kLanes);
    for (std::size_t span = 0; span < spans(layer); ++span)
      v = v + widen(sums + ((span * groups + group) * layer.out + f) * kLanes);
    store(values + f * kLanes, v);
    sum = sum + v;
  }
  const Wide mean = sum * share;
  for (std::size_t f = 0; f < hidden; ++f) {
    const Wide off = load(values + f * kLanes) - mean;
    squares = fma(squares, off, off);
  }
  const Wide scale = each(fma(all(epsilon), squares, share),
                          [](float32x4_t v) { return vdivq_f32(vdupq_n_f32(1.0f), vsqrtq_f32(v)); });
  for (std::size_t f = 0; f < hidden; ++f)
    vst1q_f16(x + f * kLanes, narrow(fma(all(by.bias[f]), (load(values + f * kLanes) - mean) * scale, all(by.weight[f]))));
}

void through_layers(const HalfStack &stack, float *rows, const std::int64_t *offsets, std::size_t texts, int threads) {
  const std::size_t tokens = std::size_t(offsets[texts]), crew = std::size_t(std::max(threads, 1));
  const bool apart = threads < 2 || texts >= kTextsEach * crew;
  const std::size_t each = apart ? crew : 1, parts = up_to(tokens, each * kTokens) / kTokens; // a multiple of the crew
  const auto cut = [&](std::size_t part) { // the text with which a part begins
    return std::size_t(std::lower_bound(offsets, offsets + texts, std::int64_t(tokens * part / parts)) - offsets);
  };
  share(apart ? threads : 1, parts, [&](std::size_t part) {
    thread_local Passage passage;
    const std::size_t first = cut(part), last = part + 1 < parts ? cut(part + 1) : texts;
    float *begin = rows + std::size_t(offsets[first]) * stack.hidden;
    if (first < last) passage.run(stack, begin, offsets + first, last - first, apart ? 1 : threads);
  });
}

void norm_rows(float *values, std::size_t rows, std::size_t width, const float *weight, const float *bias, float epsilon,
               int threads) {
  share(threads, (rows + kNormed - 1) / kNormed, [=](std::size_t piece) {
    for (std::size_t r = piece * kNormed; r < std::min(rows, (piece + 1) * kNormed); ++r) {
      float *row = values + r * width;
      const float mean = total(row, width, 0, false) / float(width);
      const float scale = 1 / std::sqrt(total(row, width, mean, true) / float(width) + epsilon);
      for (std::size_t k = 0; k < width; ++k) row[k] = (row[k] - mean) * scale * weight[k] + bias[k];
    }
  });
}

#else // another CPU, or a compiler without these instructions

bool half_here() { return false; }
HalfLinear::HalfLinear(const float *, const float *, std::size_t terms, std::size_t rows) : in(terms), out(rows) {}
void through_layers(const HalfStack &, float *, const std::int64_t *, std::size_t, int) {}
void norm_rows(float *, std::size_t, std::size_t, const float *, const float *, float, int) {}

#endif
} // namespace ridgeline
