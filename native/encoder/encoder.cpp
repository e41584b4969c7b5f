// Runs texts through the layers of an encoder in float16. With many texts, each thread takes as many as its second cache
// holds through all layers. With few texts, all threads share every step.
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

constexpr std::size_t kTokens = 192;  // tokens of one pass: 2 MiB of buffers
constexpr std::size_t kTextsPerThread = 4; // with fewer texts per thread, the threads share steps instead of texts
constexpr std::size_t kPanels = 16;   // the most panels that a thread takes at once
constexpr int kSpins = 4000;          // spins before a waiting thread yields

// Transposes x [features][8] to the rows of up to eight tokens.
void write_rows(const Half *x, std::size_t tokens, std::size_t hidden, float *rows) {
  for (std::size_t f = 0; f < hidden; f += 8) {
    Eight columns[8], columns_out[8];
    for (std::size_t i = 0; i < 8; ++i) columns[i] = vld1q_f16(x + (f + i) * kLanes);
    transpose(columns, columns_out);
    for (std::size_t i = 0; i < tokens; ++i) {
      const Wide wide_values = widen(columns_out[i]);
      float *to = rows + i * hidden + f, last[8];
      store(f + 8 > hidden ? last : to, wide_values);
      if (f + 8 > hidden) std::copy(last, last + (hidden - f), to);
    }
  }
}

// Memory in huge pages, where the system has them.
class Block {
public:
  Block() = default;
  Block(const Block &) = delete;
  ~Block() { std::free(memory); }

  void reserve(std::size_t numbers) {
    const std::size_t needed = up_to(numbers * sizeof(Half), kLarge);
    if (needed <= bytes) return;
    std::free(memory), bytes = 0;
    memory = static_cast<Half *>(std::aligned_alloc(kLarge, needed));
    if (!memory) throw std::bad_alloc();
    madvise(memory, bytes = needed, MADV_HUGEPAGE);
  }
  Half *begin() const { return memory; }

private:
  static constexpr std::size_t kLarge = 2 << 20;
  Half *memory = nullptr;
  std::size_t bytes = 0;
};

// Runs some texts through all layers. Every thread goes through all steps and takes pieces of each step. A step ends when
// all its pieces are done. A thread that wakes up late skips the finished steps and joins the others.
class EncoderPass {
public:
  void run(const HalfEncoder &of, const std::int32_t *token_ids, const std::int64_t *text_offsets, std::size_t count, int threads,
           float *to) {
    stack = &of, ids = token_ids, offsets = text_offsets, texts = count, rows = to, thread_count = std::size_t(std::max(threads, 1));
    tokens = at(texts), features = up_to(stack->hidden, kShort), groups = up_to(tokens, kLanes) / kLanes;
    steps = std::vector<Step>(kSteps * stack->layers.size() + 2);
    split_buffer();
    count_positions();
    if (threads < 2) run_steps();
    else run_parallel(threads, [this](int) { run_steps(); });
  }

private:
  static constexpr std::size_t kSteps = 7; // of a layer
  struct Step {
    std::atomic<std::size_t> next{0}, done{0};
  };

  void run_steps() {
    Step *step = steps.data();
    take(*step++, groups, [&](std::size_t g) { embed(g); });
    for (const HalfLayer &layer : stack->layers) {
      const bool is_done = &layer == &stack->layers.front() && stack->embedding->products; // by embed()
      take(*step++, is_done ? 0 : panels(layer.qkv),
           [&](std::size_t p) { product(layer.qkv, p, x, groups, Activation::none, qkv); }, panels_at_once(panels(layer.qkv)));
      take(*step++, texts * stack->heads, [&](std::size_t k) {
        const std::size_t text = k / stack->heads, first = at(text), last = at(text + 1);
        if (first < last) attend(*stack, layer, k % stack->heads, qkv, first, last, mixed);
      });
      multiply_add_norm(step, layer.out, mixed, layer.out_norm);
      take(*step++, panels(layer.up), [&](std::size_t p) { product(layer.up, p, x, groups, stack->activation, wide); }, panels_at_once(panels(layer.up)));
      multiply_add_norm(step, layer.down, wide, layer.down_norm);
    }
    take(*step, groups, [&](std::size_t g) {
      write_rows(x + g * features * kLanes, in_group(g), stack->hidden, rows + g * kLanes * stack->hidden);
    });
  }

  void embed(std::size_t g) {
    const HalfEmbedding &embedding = *stack->embedding;
    Half *products = embedding.products ? qkv + g * embedding.products->out() * kLanes : nullptr;
    embedding.embed({ids + g * kLanes, positions.data() + g * kLanes, in_group(g), {}, {}}, stack->epsilon,
                reinterpret_cast<std::uint16_t *>(x + g * features * kLanes), reinterpret_cast<std::uint16_t *>(products));
  }

  // BERT counts positions from 0. RoBERTa counts from padding + 1, and padding inside a text is not counted.
  void count_positions() {
    positions.resize(tokens);
    const std::int32_t padding = std::int32_t(stack->embedding->padding);
    for (std::size_t text = 0; text < texts; ++text) {
      std::int32_t position = padding;
      for (std::size_t k = at(text); k < at(text + 1); ++k)
        positions[k] = padding >= 0 && ids[k] == padding ? padding : ++position;
    }
  }

  void multiply_add_norm(Step *&step, const HalfLinear &layer, const Half *source, const HalfNorm &norm) {
    take(*step++, panels(layer), [&](std::size_t p) { product(layer, p, source, groups, sums); }, panels_at_once(panels(layer)));
    take(*step++, groups, [&](std::size_t g) {
      add_norm(layer, sums, g, groups, norm, stack->hidden, stack->epsilon, x + g * layer.out * kLanes);
    });
  }

  // A thread takes several panels at once, because each panel prefetches the factors of the next.
  std::size_t panels_at_once(std::size_t all) const { return std::clamp<std::size_t>(all / (2 * thread_count), 1, kPanels); }

  template <class Work> static void take(Step &step, std::size_t pieces, const Work &work, std::size_t each = 1) {
    for (std::size_t first; (first = step.next.fetch_add(each)) < pieces;) {
      const std::size_t last = std::min(pieces, first + each);
      for (std::size_t k = first; k < last; ++k) work(k);
      step.done.fetch_add(last - first);
    }
    for (int spins = 0; step.done < pieces; ++spins)
      if (spins > kSpins) std::this_thread::yield(); // the thread with the last piece may need this very CPU
  }

  std::size_t in_group(std::size_t g) const { return std::min(kLanes, tokens - g * kLanes); }
  std::size_t at(std::size_t text) const { return std::size_t(offsets[text] - offsets[0]); } // its first token

  // All five buffers share one block of huge pages: with small pages they need more entries than the first TLB has (48), and
  // a panel takes a third longer.
  void split_buffer() {
    std::size_t largest[5] = {features}; // numbers per token of x, qkv, mixed, wide, sums
    for (const HalfLayer &layer : stack->layers) {
      const std::size_t needed[] = {features, spans(layer.qkv) * layer.qkv.out, layer.out.in,
                                    spans(layer.up) * layer.up.out,
                                    std::max(spans(layer.out), spans(layer.down)) * features};
      for (int i = 0; i < 5; ++i) largest[i] = std::max(largest[i], needed[i]);
    }
    buffer.reserve((largest[0] + largest[1] + largest[2] + largest[3] + largest[4]) * groups * kLanes);
    Half **names[] = {&x, &qkv, &mixed, &wide, &sums}, *at = buffer.begin();
    for (int i = 0; i < 5; at += largest[i++] * groups * kLanes) *names[i] = at;
    std::fill(mixed, mixed + largest[2] * groups * kLanes, Half(0)); // no step writes the lanes after the last token
  }

  const HalfEncoder *stack = nullptr;
  const std::int32_t *ids = nullptr;
  const std::int64_t *offsets = nullptr;
  std::size_t texts = 0, tokens = 0, features = 0, groups = 0, thread_count = 1;
  float *rows = nullptr;
  std::vector<std::int32_t> positions; // by token
  std::vector<Step> steps;
  Block buffer;
  Half *x = nullptr, *qkv = nullptr, *mixed = nullptr, *wide = nullptr, *sums = nullptr;
};

} // namespace

bool half_supported() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0; }

HalfLinear::HalfLinear(const float *from, const float *biases, std::size_t terms, std::size_t rows)
    : in(up_to(terms, kShort)), out(up_to(rows, kShort)), weight(up_to(out, kRows) * in), bias(up_to(out, kRows)) {
  auto *to = reinterpret_cast<Half *>(weight.data());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t k = 0; k < terms; ++k) to[(r / kRows * in + k) * kRows + r % kRows] = Half(from[r * terms + k]);
  std::copy(biases, biases + rows, reinterpret_cast<Half *>(bias.data()));
}

void add_norm(const HalfLinear &layer, const Half *sums, std::size_t group, std::size_t groups, const HalfNorm &norm,
              std::size_t hidden, float epsilon, Half *x) {
  thread_local std::vector<float> buffer;
  buffer.resize(std::max(buffer.size(), hidden * kLanes));
  float *values = buffer.data();
  const Wide per_feature = all(1 / float(hidden));
  Wide sum = all(0), squares = all(0);
  for (std::size_t f = 0; f < hidden; ++f) {
    Wide v = widen(x + f * kLanes);
    for (std::size_t span = 0; span < spans(layer); ++span)
      v = v + widen(sums + ((span * groups + group) * layer.out + f) * kLanes);
    store(values + f * kLanes, v);
    sum = sum + v;
    squares = fma(squares, v, v); // float32 has enough digits for this difference of squares of float16 numbers
  }
  const Wide mean = sum * per_feature, variance = squares * per_feature - mean * mean;
  const Wide scale = each(variance, [=](float32x4_t v) { // for equal numbers rounding may make it negative
    return vdivq_f32(vdupq_n_f32(1.0f), vsqrtq_f32(vaddq_f32(vmaxq_f32(v, vdupq_n_f32(0)), vdupq_n_f32(epsilon))));
  });
  const Wide off = all(0) - mean * scale;
  for (std::size_t f = 0; f < hidden; ++f)
    vst1q_f16(x + f * kLanes, narrow(fma(all(norm.bias[f]), fma(off, load(values + f * kLanes), scale), all(norm.weight[f]))));
}

void encode(const HalfEncoder &stack, const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts,
                    int threads, float *rows) {
  const std::size_t tokens = std::size_t(offsets[texts]), thread_count = std::size_t(std::max(threads, 1));
  if (stack.embedding->products) stack.embedding->products->prepare(ids, tokens, threads);
  const bool by_texts = threads < 2 || texts >= kTextsPerThread * thread_count;
  const std::size_t each = by_texts ? thread_count : 1, parts = up_to(tokens, each * kTokens) / kTokens; // a multiple of the thread count
  struct Part {
    std::size_t first, last, tokens; // texts
  };
  std::vector<Part> work;
  for (std::size_t part = 1, first = 0; part <= parts; ++part) {
    const std::int64_t *cut = std::lower_bound(offsets, offsets + texts, std::int64_t(tokens * part / parts));
    const std::size_t last = part < parts ? std::size_t(cut - offsets) : texts;
    if (first < last) work.push_back({first, last, std::size_t(offsets[last] - offsets[first])});
    first = last;
  }
  // Large parts first: the last parts are small, so no thread waits long for another.
  std::stable_sort(work.begin(), work.end(), [](const Part &a, const Part &b) { return a.tokens > b.tokens; });
  share_pieces(by_texts ? threads : 1, work.size(), [&](std::size_t k) {
    thread_local EncoderPass pass;
    const std::size_t begin = std::size_t(offsets[work[k].first]);
    pass.run(stack, ids + begin, offsets + work[k].first, work[k].last - work[k].first, by_texts ? 1 : threads,
                rows + begin * stack.hidden);
  });
}

#else // another CPU, or a compiler without these instructions

bool half_supported() { return false; }
HalfLinear::HalfLinear(const float *, const float *, std::size_t terms, std::size_t rows) : in(terms), out(rows) {}
void encode(const HalfEncoder &, const std::int32_t *, const std::int64_t *, std::size_t, int, float *) {}

#endif
} // namespace ridgeline
