// Runs texts through the layers of an encoder in float32. With many texts each thread takes some of them through all layers.
// With few texts all threads share every step: products by panels, attention by heads, norms by rows.
#include "encoder/float_encoder.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "threads/pool.hpp"

namespace ridgeline {
namespace {

constexpr std::size_t kPassTokens = 192;   // of one thread: x and its products stay in the second cache
constexpr std::size_t kTextsPerThread = 4; // with fewer texts per thread, the threads share steps instead of texts
constexpr std::size_t kRowsAtOnce = 8;     // of a norm
constexpr std::size_t kQueriesAtOnce = 24; // of attention; a multiple of the rows of a tile
constexpr int kSpins = 4000;               // before a waiting thread yields

std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

// Runs some texts through all layers. Every thread goes through all steps and takes pieces of each step. A step ends when
// all its pieces are done. A thread that wakes up late skips the finished steps and joins the others.
class FloatPass {
public:
  void run(const FloatEncoder &encoder, const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts, int threads, float *rows) {
    encoder_ = &encoder, loops_ = &select_encoder_loops(encoder.isa), ids_ = ids, offsets_ = offsets, texts_ = texts, x_ = rows;
    tokens_ = std::size_t(offsets[texts] - offsets[0]);
    steps_ = std::vector<Step>(1 + kSteps * encoder.layers.size());
    reserve();
    count_positions();
    if (threads < 2) run_steps();
    else run_parallel(threads, [this](int) { run_steps(); });
  }

private:
  static constexpr std::size_t kSteps = 11; // of a layer
  struct Step {
    std::atomic<std::size_t> next{0}, done{0};
  };

  void run_steps() {
    Step *step = steps_.data();
    by_rows(*step++, [&](std::size_t row) { embed(row); });
    for (const FloatLayer &layer : encoder_->layers) {
      multiply(step, layer.qkv, x_, Activation::none, qkv_.data());
      take(*step++, texts_ * encoder_->heads, [&](std::size_t k) { attend(k / encoder_->heads, k % encoder_->heads); });
      multiply(step, layer.out, mixed_.data(), Activation::none, sums_.data());
      add_norm(*step++, layer.out_norm);
      multiply(step, layer.up, x_, encoder_->activation, wide_.data());
      multiply(step, layer.down, wide_.data(), Activation::none, sums_.data());
      add_norm(*step++, layer.down_norm);
    }
  }

  void embed(std::size_t row) {
    const std::size_t hidden = encoder_->hidden;
    float *to = x_ + row * hidden;
    std::copy_n(encoder_->words.rows + std::size_t(ids_[row]) * hidden, hidden, to);
    const FloatNorm &norm = encoder_->norm;
    loops_->add_norm(encoder_->positions.rows + std::size_t(positions_[row]) * hidden, norm.weight.data(), norm.bias.data(), hidden, encoder_->epsilon, to);
  }

  // BERT counts positions from 0. RoBERTa counts from padding + 1, and padding inside a text is not counted.
  void count_positions() {
    positions_.resize(tokens_);
    const auto padding = std::int32_t(encoder_->padding);
    for (std::size_t text = 0; text < texts_; ++text) {
      std::int32_t position = padding;
      for (std::size_t k = first_of(text); k < first_of(text + 1); ++k) positions_[k] = padding >= 0 && ids_[k] == padding ? padding : ++position;
    }
  }

  void multiply(Step *&step, const FloatLinear &layer, const float *x, Activation activation, float *y) {
    const std::size_t terms = round_up(layer.in, kTermMultiple); // of 8 bits
    if (encoder_->in_bytes)
      by_rows(*step, [&](std::size_t row) { x_scales_[row] = loops_->quantize(x + row * layer.in, layer.in, x_bytes_.data() + row * terms); });
    ++step;
    take(*step++, (layer.out + kPanel - 1) / kPanel, [&](std::size_t panel) {
      const std::size_t column = panel * kPanel, columns = std::min(kPanel, layer.out - column);
      const float *bias = layer.bias.data() + column;
      if (encoder_->in_bytes) {
        const BytePanel part{layer.bytes.data() + column * terms, layer.in, columns, layer.scales.data() + column, bias, layer.sums.data() + column};
        loops_->multiply_bytes(encoder_->int8, part, x_bytes_.data(), x_scales_.data(), terms, tokens_, activation, y + column, layer.out);
      } else {
        const FloatPanel part{layer.weight.data() + column * layer.in, layer.in, columns, columns, bias};
        loops_->multiply(part, x, layer.in, tokens_, activation, y + column, layer.out);
      }
    });
  }

  // One head of one text: the weights of all keys for some queries, then the mix of their values.
  void attend(std::size_t text, std::size_t head) {
    const std::size_t first = first_of(text), length = first_of(text + 1) - first, padded = round_up(length, kColumns);
    if (!length) return;
    const std::size_t width = encoder_->width, mixed = encoder_->heads * width, step = 3 * mixed;
    const float *queries = qkv_.data() + first * step + head * width, *keys = queries + mixed, *values = keys + mixed;
    thread_local std::vector<float> keys_by_feature, weights;
    keys_by_feature.resize(std::max(keys_by_feature.size(), width * padded));
    weights.resize(std::max(weights.size(), kQueriesAtOnce * padded));
    for (std::size_t first_key = 0; first_key < length; first_key += kColumns) { // few keys at once: they lie far apart in memory
      const std::size_t keys_here = std::min(kColumns, length - first_key);
      for (std::size_t f = 0; f < width; ++f) {
        float *to = keys_by_feature.data() + f * padded + first_key;
        for (std::size_t k = 0; k < keys_here; ++k) to[k] = keys[(first_key + k) * step + f];
        std::fill(to + keys_here, to + kColumns, 0.0f);
      }
    }
    for (std::size_t row = 0; row < length; row += kQueriesAtOnce) {
      const std::size_t rows = std::min(kQueriesAtOnce, length - row);
      loops_->multiply({keys_by_feature.data(), width, padded, padded, nullptr}, queries + row * step, step, rows, Activation::none, weights.data(), padded);
      for (std::size_t r = 0; r < rows; ++r) loops_->softmax(weights.data() + r * padded, length, padded);
      loops_->multiply({values, length, width, step, nullptr}, weights.data(), padded, rows, Activation::none,
                      mixed_.data() + (first + row) * mixed + head * width, mixed);
    }
  }

  void add_norm(Step &step, const FloatNorm &norm) {
    const std::size_t hidden = encoder_->hidden;
    by_rows(step, [&](std::size_t row) {
      loops_->add_norm(sums_.data() + row * hidden, norm.weight.data(), norm.bias.data(), hidden, encoder_->epsilon, x_ + row * hidden);
    });
  }

  template <class Work> void by_rows(Step &step, const Work &work) {
    take(step, (tokens_ + kRowsAtOnce - 1) / kRowsAtOnce, [&](std::size_t k) {
      for (std::size_t row = k * kRowsAtOnce; row < std::min(tokens_, (k + 1) * kRowsAtOnce); ++row) work(row);
    });
  }

  template <class Work> static void take(Step &step, std::size_t pieces, const Work &work) {
    for (std::size_t k; (k = step.next.fetch_add(1)) < pieces; step.done.fetch_add(1)) work(k);
    for (int spins = 0; step.done < pieces; ++spins) {
      pause_cpu();
      if (spins > kSpins) std::this_thread::yield(); // the thread with the last piece may need this very CPU
    }
  }

  void reserve() {
    std::size_t wide = 0, widest = 0;
    for (const FloatLayer &layer : encoder_->layers) wide = std::max(wide, layer.up.out);
    const std::size_t mixed = encoder_->heads * encoder_->width;
    widest = std::max({wide, mixed, encoder_->hidden});
    const auto grow = [](auto &buffer, std::size_t size) { buffer.resize(std::max(buffer.size(), size)); };
    grow(qkv_, tokens_ * 3 * mixed), grow(mixed_, tokens_ * mixed), grow(wide_, tokens_ * wide), grow(sums_, tokens_ * encoder_->hidden);
    if (encoder_->in_bytes) grow(x_bytes_, round_up(tokens_, kColumns) * round_up(widest, kTermMultiple)), grow(x_scales_, tokens_);
  }

  std::size_t first_of(std::size_t text) const { return std::size_t(offsets_[text] - offsets_[0]); }

  const FloatEncoder *encoder_ = nullptr;
  const EncoderLoops *loops_ = nullptr;
  const std::int32_t *ids_ = nullptr;
  const std::int64_t *offsets_ = nullptr;
  std::size_t texts_ = 0, tokens_ = 0;
  float *x_ = nullptr; // [tokens][hidden], the result in the end
  std::vector<std::int32_t> positions_;
  std::vector<Step> steps_;
  std::vector<float> qkv_, mixed_, wide_, sums_, x_scales_;
  std::vector<std::uint8_t> x_bytes_;
};

} // namespace

FloatLinear::FloatLinear(const float *from, const float *biases, std::size_t terms, std::size_t outputs, bool in_bytes)
    : in(terms), out(outputs), bias(biases, biases + outputs) {
  const auto columns_at = [&](std::size_t output) { return std::min(kPanel, out - output / kPanel * kPanel); };
  if (!in_bytes) {
    weight.resize(in * out);
    for (std::size_t o = 0; o < out; ++o)
      for (std::size_t k = 0; k < in; ++k) weight[o / kPanel * kPanel * in + k * columns_at(o) + o % kPanel] = from[o * in + k];
    return;
  }
  const std::size_t padded = round_up(in, kTermMultiple);
  bytes.resize(padded * out), scales.resize(out), sums.resize(out);
  for (std::size_t o = 0; o < out; ++o) {
    const float *row = from + o * in;
    float largest = 0;
    for (std::size_t k = 0; k < in; ++k) largest = std::max(largest, std::fabs(row[k]));
    scales[o] = largest / 127;
    for (std::size_t k = 0; k < in; ++k) {
      const auto value = std::int32_t(largest > 0 ? std::nearbyint(row[k] / scales[o]) : 0);
      bytes[o / kPanel * kPanel * padded + (k / 4 * columns_at(o) + o % kPanel) * 4 + k % 4] = std::int8_t(value);
      sums[o] += 128 * value;
    }
  }
}

void encode(const FloatEncoder &encoder, const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts, int threads, float *rows) {
  const std::size_t tokens = std::size_t(offsets[texts]), thread_count = std::size_t(std::max(threads, 1));
  const bool by_texts = threads < 2 || texts >= kTextsPerThread * thread_count;
  const std::size_t together = by_texts ? thread_count : 1;
  const std::size_t parts = std::max<std::size_t>(1, round_up(tokens, together * kPassTokens) / kPassTokens); // a multiple of the threads
  std::vector<std::size_t> cuts{0}; // texts
  for (std::size_t part = 1; part < parts; ++part)
    cuts.push_back(std::size_t(std::lower_bound(offsets, offsets + texts, std::int64_t(tokens * part / parts)) - offsets));
  cuts.push_back(texts);
  parallel_for(std::int64_t(parts), 1, by_texts ? threads : 1, [&](std::int64_t from, std::int64_t) {
    const std::size_t part = parts - 1 - std::size_t(from), first = cuts[part], last = cuts[part + 1];
    if (first >= last) return;
    thread_local FloatPass pass;
    pass.run(encoder, ids + offsets[first], offsets + first, last - first, by_texts ? 1 : threads, rows + std::size_t(offsets[first]) * encoder.hidden);
  });
}

} // namespace ridgeline
