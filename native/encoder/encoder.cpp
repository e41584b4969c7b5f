// Texts through an encoder's layers in float16. As many texts as a core's second cache holds go through all layers by
// themselves, a thread each; fewer texts than that make the threads share every step.
#include "encoder/steps.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "encoder/embedding.hpp"
#include "threads/pool.hpp"

#if RIDGELINE_HALF
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#endif

namespace ridgeline {

#if RIDGELINE_HALF
namespace {

constexpr std::size_t kTokens = 192;  // that go through the layers together: 2 MiB of buffers
constexpr std::size_t kTextsEach = 4; // for each thread at least, or threads share steps instead of texts
constexpr std::size_t kPanels = 16;   // a thread takes in a row, at most
constexpr int kSpins = 4000;          // a moment

// x [features][8] → the rows of up to eight tokens.
void leave(const Half *x, std::size_t tokens, std::size_t hidden, float *rows) {
  for (std::size_t f = 0; f < hidden; f += 8) {
    Eight columns[8], turned[8];
    for (std::size_t i = 0; i < 8; ++i) columns[i] = vld1q_f16(x + (f + i) * kLanes);
    turn(columns, turned);
    for (std::size_t i = 0; i < tokens; ++i) {
      const Wide found = widen(turned[i]);
      float *to = rows + i * hidden + f, some[8];
      store(f + 8 > hidden ? some : to, found);
      if (f + 8 > hidden) std::copy(some, some + (hidden - f), to);
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
  void run(const HalfStack &of, const std::int32_t *of_tokens, const std::int64_t *where, std::size_t count, int threads,
           float *to) {
    stack = &of, ids = of_tokens, offsets = where, texts = count, rows = to, crew = std::size_t(std::max(threads, 1));
    tokens = at(texts), features = up_to(stack->hidden, kShort), groups = up_to(tokens, kLanes) / kLanes;
    steps = std::vector<Step>(kSteps * stack->layers.size() + 2);
    lay_out();
    count_places();
    if (threads < 2) walk();
    else run_parallel(threads, [this](int) { walk(); });
  }

private:
  static constexpr std::size_t kSteps = 7; // of a layer
  struct Step {
    std::atomic<std::size_t> next{0}, done{0};
  };

  void walk() {
    Step *step = steps.data();
    take(*step++, groups, [&](std::size_t g) { enter(g); });
    for (const HalfLayer &layer : stack->layers) {
      const bool known = &layer == &stack->layers.front() && stack->words->products; // by enter()
      take(*step++, known ? 0 : panels(layer.qkv),
           [&](std::size_t p) { product(layer.qkv, p, x, groups, Activation::none, qkv); }, some(panels(layer.qkv)));
      take(*step++, texts * stack->heads, [&](std::size_t k) {
        const std::size_t text = k / stack->heads, first = at(text), last = at(text + 1);
        if (first < last) attend(*stack, layer, k % stack->heads, qkv, first, last, mixed);
      });
      add_norm_of(step, layer.out, mixed, layer.out_norm);
      take(*step++, panels(layer.up), [&](std::size_t p) { product(layer.up, p, x, groups, stack->activation, wide); }, some(panels(layer.up)));
      add_norm_of(step, layer.down, wide, layer.down_norm);
    }
    take(*step, groups, [&](std::size_t g) {
      leave(x + g * features * kLanes, in_group(g), stack->hidden, rows + g * kLanes * stack->hidden);
    });
  }

  void enter(std::size_t g) {
    const HalfWords &words = *stack->words;
    Half *known = words.products ? qkv + g * words.products->out() * kLanes : nullptr;
    words.enter({ids + g * kLanes, places.data() + g * kLanes, in_group(g), {}, {}}, stack->epsilon,
                reinterpret_cast<std::uint16_t *>(x + g * features * kLanes), reinterpret_cast<std::uint16_t *>(known));
  }

  // BERT counts its places from 0; RoBERTa from behind its padding, and padding written in a text does not count.
  void count_places() {
    places.resize(tokens);
    const std::int32_t padding = std::int32_t(stack->words->padding);
    for (std::size_t text = 0; text < texts; ++text) {
      std::int32_t place = padding;
      for (std::size_t k = at(text); k < at(text + 1); ++k)
        places[k] = padding >= 0 && ids[k] == padding ? padding : ++place;
    }
  }

  void add_norm_of(Step *&step, const HalfLinear &layer, const Half *from, const HalfNorm &by) {
    take(*step++, panels(layer), [&](std::size_t p) { product(layer, p, from, groups, sums); }, some(panels(layer)));
    take(*step++, groups, [&](std::size_t g) {
      add_norm(layer, sums, g, groups, by, stack->hidden, stack->epsilon, x + g * layer.out * kLanes);
    });
  }

  // Of so many panels a thread takes some in a row: each has the factors of the next one fetched.
  std::size_t some(std::size_t all) const { return std::clamp<std::size_t>(all / (2 * crew), 1, kPanels); }

  template <class Work> static void take(Step &step, std::size_t pieces, const Work &work, std::size_t each = 1) {
    for (std::size_t first; (first = step.next.fetch_add(each)) < pieces;) {
      const std::size_t last = std::min(pieces, first + each);
      for (std::size_t k = first; k < last; ++k) work(k);
      step.done.fetch_add(last - first);
    }
    for (int spins = 0; step.done < pieces; ++spins)
      if (spins > kSpins) std::this_thread::yield(); // who has the last piece may be waiting for this very CPU
  }

  std::size_t in_group(std::size_t g) const { return std::min(kLanes, tokens - g * kLanes); }
  std::size_t at(std::size_t text) const { return std::size_t(offsets[text] - offsets[0]); } // its first token

  // All five in one block of large pages: in small ones they need more entries than the first TLB has (48), and a panel
  // takes a third longer.
  void lay_out() {
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
  const std::int32_t *ids = nullptr;
  const std::int64_t *offsets = nullptr;
  std::size_t texts = 0, tokens = 0, features = 0, groups = 0, crew = 1;
  float *rows = nullptr;
  std::vector<std::int32_t> places; // by token
  std::vector<Step> steps;
  Block room;
  Half *x = nullptr, *qkv = nullptr, *mixed = nullptr, *wide = nullptr, *sums = nullptr;
};

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
    squares = fma(squares, v, v); // float32 has digits enough for a difference of squares of what float16 could hold
  }
  const Wide mean = sum * share, variance = squares * share - mean * mean;
  const Wide scale = each(variance, [=](float32x4_t v) { // of equal numbers it may be a little below 0
    return vdivq_f32(vdupq_n_f32(1.0f), vsqrtq_f32(vaddq_f32(vmaxq_f32(v, vdupq_n_f32(0)), vdupq_n_f32(epsilon))));
  });
  const Wide off = all(0) - mean * scale;
  for (std::size_t f = 0; f < hidden; ++f)
    vst1q_f16(x + f * kLanes, narrow(fma(all(by.bias[f]), fma(off, load(values + f * kLanes), scale), all(by.weight[f]))));
}

void through_layers(const HalfStack &stack, const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts,
                    int threads, float *rows) {
  const std::size_t tokens = std::size_t(offsets[texts]), crew = std::size_t(std::max(threads, 1));
  if (stack.words->products) stack.words->products->prepare(ids, tokens, threads);
  const bool apart = threads < 2 || texts >= kTextsEach * crew;
  const std::size_t each = apart ? crew : 1, parts = up_to(tokens, each * kTokens) / kTokens; // a multiple of the crew
  struct Part {
    std::size_t first, last, tokens; // texts
  };
  std::vector<Part> found;
  for (std::size_t part = 1, first = 0; part <= parts; ++part) {
    const std::int64_t *cut = std::lower_bound(offsets, offsets + texts, std::int64_t(tokens * part / parts));
    const std::size_t last = part < parts ? std::size_t(cut - offsets) : texts;
    if (first < last) found.push_back({first, last, std::size_t(offsets[last] - offsets[first])});
    first = last;
  }
  // The large ones first: what is left at the end is small, and no thread waits long for another.
  std::stable_sort(found.begin(), found.end(), [](const Part &a, const Part &b) { return a.tokens > b.tokens; });
  share(apart ? threads : 1, found.size(), [&](std::size_t k) {
    thread_local Passage passage;
    const std::size_t begin = std::size_t(offsets[found[k].first]);
    passage.run(stack, ids + begin, offsets + found[k].first, found[k].last - found[k].first, apart ? 1 : threads,
                rows + begin * stack.hidden);
  });
}

#else // another CPU, or a compiler without these instructions

bool half_here() { return false; }
HalfLinear::HalfLinear(const float *, const float *, std::size_t terms, std::size_t rows) : in(terms), out(rows) {}
void through_layers(const HalfStack &, const std::int32_t *, const std::int64_t *, std::size_t, int, float *) {}

#endif
} // namespace ridgeline
