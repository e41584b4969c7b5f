#include "search/rabitq.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "search/top_candidates.hpp"
#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS(RabitqLoops, compiled_rabitq_loops)

RabitqLoops rabitq_loops(Isa isa) { return select_compiled_rabitq_loops(isa); }

namespace {
constexpr std::int64_t kBlock = 32;                     // bytes that a loop reads at a time
constexpr std::int64_t kRowsAtOnce = 64;
constexpr float kLargest[] = {0, 127, 127 * 128};       // component of a query that is rounded to one or two digits
constexpr double kRounding = 2e-6;                      // relative, of estimates in float32, beside the bound
constexpr std::int64_t kSingleThread = 1 << 20;         // bytes: waking a thread costs as much as reading this many
constexpr float kLowest = -std::numeric_limits<float>::infinity();
} // namespace

Rabitq::Rabitq(std::int64_t dim, int bits, const std::uint8_t *signs) : dim_(dim), bits_(bits) {
  for (std::int64_t i = 0; i < kRotationRounds * dim; ++i) signs_.push_back(signs[i] ? -1.0f : 1.0f);
  code_bytes_ = 0;
  const auto add = [&](int section_bits, float weight) {
    const std::int64_t fields = 8 / section_bits, bytes = (dim + fields - 1) / fields;
    sections_.push_back({section_bits, (bytes + kBlock - 1) / kBlock * kBlock});
    weights_.push_back(weight);
    code_bytes_ += sections_.back().width;
  };
  if (bits == 3) add(2, 2), add(1, 1);
  else add(bits, 1);
  stride_ = code_bytes_ + std::int64_t(sizeof(RabitqHeader));
}

std::int64_t Rabitq::mixed() const {
  std::int64_t size = 1;
  while (2 * size <= dim_) size *= 2;
  return size;
}

// Rounds of: turn random dimensions around, then mix the first ones, in the next round the last ones. Where the dimension is
// no power of two both share some.
void Rabitq::rotate(float *x, const RabitqLoops &loops) const {
  const std::int64_t size = mixed();
  for (int round = 0; round < kRotationRounds; ++round) {
    const float *signs = signs_.data() + round * dim_;
    for (std::int64_t d = 0; d < dim_; ++d) x[d] *= signs[d];
    loops.mix(x + (round % 2 ? dim_ - size : 0), size);
  }
}

void Rabitq::rotate_back(float *x, const RabitqLoops &loops) const {
  const std::int64_t size = mixed();
  for (int round = kRotationRounds - 1; round >= 0; --round) {
    const float *signs = signs_.data() + round * dim_;
    loops.mix(x + (round % 2 ? dim_ - size : 0), size); // its own inverse
    for (std::int64_t d = 0; d < dim_; ++d) x[d] *= signs[d];
  }
}

RabitqHeader Rabitq::header(const std::uint8_t *row) const {
  RabitqHeader header;
  std::memcpy(&header, row + code_bytes_, sizeof header);
  return header;
}

void Rabitq::encode(const float *values, std::int64_t n, std::uint8_t *codes, int threads, Isa isa) const {
  const RabitqLoops loops = rabitq_loops(isa);
  parallel_for(n, 256, threads, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> x(dim_);
    std::vector<std::uint8_t> levels(dim_);
    for (std::int64_t r = from; r < to; ++r) {
      std::memcpy(x.data(), values + r * dim_, dim_ * sizeof(float));
      rotate(x.data(), loops);
      double squares = 0;
      for (std::int64_t d = 0; d < dim_; ++d) squares += double(x[d]) * double(x[d]);
      float product = 0, square = 1;
      loops.round_to_grid(x.data(), dim_, bits_, levels.data(), &product, &square);
      RabitqHeader header{0, 0, 0};
      if (product > 0) {
        header.factor = float(squares / product);
        header.length = float(header.factor * std::sqrt(double(square)));
        // tan² of the angle between g and r: |g|²·|r|² / (g·r)² − 1
        const double tangent = std::sqrt(std::max(0.0, double(square) * squares / (double(product) * product) - 1));
        header.error = float(kDeviations * std::sqrt(squares) * tangent / std::sqrt(double(std::max<std::int64_t>(1, dim_ - 1))));
      }
      std::uint8_t *row = codes + r * stride_, *to_bytes = row;
      std::memset(row, 0, code_bytes_);
      for (std::size_t s = 0; s < sections_.size(); ++s) {
        const auto [bits, width] = sections_[s];
        const int shift = int(weights_[s]) / 2; // of three bits: the upper two, then the lowest
        for (std::int64_t d = 0; d < dim_; ++d)
          to_bytes[d % width] |= std::uint8_t(((levels[d] >> shift) & ((1 << bits) - 1)) << (bits * (d / width)));
        to_bytes += width;
      }
      std::memcpy(row + code_bytes_, &header, sizeof header);
    }
  });
}

void Rabitq::decode(const std::uint8_t *codes, std::int64_t n, float *values, int threads, Isa isa) const {
  const RabitqLoops loops = rabitq_loops(isa);
  const float middle = (float(1 << bits_) - 1) / 2;
  parallel_for(n, 256, threads, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t r = from; r < to; ++r) {
      const std::uint8_t *row = codes + r * stride_, *bytes = row;
      const float factor = header(row).factor;
      float *x = values + r * dim_;
      std::fill(x, x + dim_, -middle);
      for (std::size_t s = 0; s < sections_.size(); ++s) {
        const auto [bits, width] = sections_[s];
        for (std::int64_t d = 0; d < dim_; ++d)
          x[d] += weights_[s] * float((bytes[d % width] >> (bits * (d / width))) & ((1 << bits) - 1));
        bytes += width;
      }
      for (std::int64_t d = 0; d < dim_; ++d) x[d] *= factor;
      rotate_back(x, loops);
    }
  });
}

Rabitq::PreparedQuery Rabitq::prepare(const float *query, int digits, const RabitqLoops &loops) const {
  std::vector<float> x(query, query + dim_);
  rotate(x.data(), loops);
  float largest = 0;
  for (const float v : x) largest = std::fmax(largest, std::fabs(v));
  PreparedQuery out;
  out.scale = largest > 0 ? largest / kLargest[digits] : 1;
  std::int64_t total = 0, bytes = 0, sum = 0;
  double lost = 0;
  for (const auto &[bits, width] : sections_) total += 8 / bits * width;
  out.high.assign(total, 0);
  if (digits == 2) out.low.assign(total, 0);
  for (std::size_t s = 0; s < sections_.size(); ++s) {
    for (std::int64_t d = 0; d < dim_; ++d) {
      const std::int32_t rounded = std::int32_t(std::lrintf(x[d] / out.scale)), high = digits == 2 ? (rounded + 64) >> 7 : rounded;
      out.high[bytes + d] = std::int8_t(high);
      if (digits == 2) out.low[bytes + d] = std::int8_t(rounded - 128 * high);
      if (s > 0) continue;
      const double difference = double(x[d]) - double(out.scale) * double(rounded);
      sum += rounded, lost += difference * difference;
    }
    bytes += 8 / sections_[s].bits * sections_[s].width;
  }
  out.sum = out.scale * float(sum), out.lost = std::sqrt(lost);
  return out;
}

void Rabitq::estimate(const PreparedQuery &query, const std::uint8_t *rows, std::int64_t n, float error_weight, float length_weight,
                      float *out, float *errors, const RabitqLoops &loops) const {
  const float middle = (float(1 << bits_) - 1) / 2, shift = middle * query.sum;
  const bool two = !query.low.empty();
  std::fill(out, out + n, 0.0f);
  for (std::int64_t from = 0; from < n; from += kRowsAtOnce) { // all loops read a row while it is in the L1 cache
    const std::int64_t count = std::min(kRowsAtOnce, n - from);
    std::int64_t at = from * stride_, digits = 0;
    for (std::size_t s = 0; s < sections_.size(); ++s) {
      loops.add_products(sections_[s], query.high.data() + digits, weights_[s] * (two ? 128.0f : 1.0f), rows + at, stride_, count, out + from);
      if (two) loops.add_products(sections_[s], query.low.data() + digits, weights_[s], rows + at, stride_, count, out + from);
      at += sections_[s].width, digits += 8 / sections_[s].bits * sections_[s].width;
    }
    for (std::int64_t r = from; r < from + count; ++r) {
      const RabitqHeader row = header(rows + r * stride_);
      out[r] = row.factor * (query.scale * out[r] - shift);
      errors[r] = error_weight * row.error + length_weight * row.length;
    }
  }
}

std::int64_t RabitqSearch::search(const float *query, std::int64_t k, std::int64_t nprobe, double *scores, std::int64_t *rows, Isa isa,
                                  int threads) const {
  const SearchLoops loops = search_loops(isa);
  const RabitqLoops code_loops = rabitq_loops(isa);
  const std::int64_t dim = codec->dim();
  const double length = std::sqrt(loops.dot(query, query, dim)), reach = length * longest + longest * longest / 2;
  if (!(reach < too_large)) return -1;

  std::vector<float> products(lists);
  loops.dots(query, centres, dim, lists, products.data());
  std::vector<std::int64_t> order(lists);
  std::iota(order.begin(), order.end(), 0);
  const auto closeness = [&](std::int64_t l) { return halves ? products[l] - halves[l] : products[l]; };
  nprobe = std::min(nprobe, lists);
  if (nprobe < lists)
    std::nth_element(order.begin(), order.begin() + nprobe, order.end(),
                     [&](std::int64_t a, std::int64_t b) { return closeness(a) != closeness(b) ? closeness(a) > closeness(b) : a < b; });
  // The nearest list first: its rows give a high bar.
  std::partial_sort(order.begin(), order.begin() + std::min<std::int64_t>(nprobe, 4), order.begin() + nprobe,
                    [&](std::int64_t a, std::int64_t b) { return closeness(a) > closeness(b); });

  struct Part {
    const RabitqSegment *segment;
    std::int64_t list, from, count, start;
  };
  std::vector<Part> parts;
  std::int64_t total = 0;
  for (std::int64_t n = 0; n < nprobe; ++n)
    for (const RabitqSegment &segment : segments) {
      const std::int64_t from = segment.offsets[order[n]], count = segment.offsets[order[n] + 1] - from;
      if (count) parts.push_back({&segment, order[n], from, count, total}), total += count;
    }
  const Rabitq::PreparedQuery prepared = codec->prepare(query, values ? 1 : 2, code_loops);
  // What a query loses by one digit has a random direction, too; of two digits the bound is certain.
  const double lost = values ? kDeviations * prepared.lost / std::sqrt(double(std::max<std::int64_t>(1, dim - 1))) : 0;
  const float rounding = float(kRounding * reach + (values ? 0 : prepared.lost * longest_difference) + std::numeric_limits<float>::min());
  std::vector<float> estimates(total), errors(total);
  const std::int64_t stride = codec->stride();
  parallel_for(std::int64_t(parts.size()), 1, total * stride > kSingleThread ? threads : 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      const Part &part = parts[p];
      float *out = estimates.data() + part.start;
      codec->estimate(prepared, part.segment->codes + part.from * stride, part.count, values ? float(length) : 0.0f, float(lost), out,
                      errors.data() + part.start, code_loops);
      for (std::int64_t i = 0; i < part.count; ++i)
        out[i] += products[part.list] + (part.segment->biases ? part.segment->biases[part.from + i] : 0.0f);
    }
  });

  // Rows whose upper bound reaches the k-th best lower bound. Without vectors to read, the bound covers rounding only.
  struct Candidate {
    float upper;
    std::int64_t part, at;
  };
  std::vector<Candidate> candidates;
  std::vector<float> lowest; // a heap of the k best lower bounds, the least of them first
  float bar = kLowest;
  for (std::int64_t p = 0; p < std::int64_t(parts.size()); ++p) {
    const Part &part = parts[p];
    for (std::int64_t i = 0; i < part.count; ++i) {
      const float estimate = estimates[part.start + i], error = errors[part.start + i] + rounding;
      if (!(estimate + error >= bar)) continue;
      if (allowed && !allowed[part.segment->rows[part.from + i]]) continue;
      candidates.push_back({estimate + error, p, part.from + i});
      const float lower = estimate - error;
      if (std::int64_t(lowest.size()) < k) {
        lowest.push_back(lower), std::push_heap(lowest.begin(), lowest.end(), std::greater<>());
      } else if (lower > lowest.front()) {
        std::pop_heap(lowest.begin(), lowest.end(), std::greater<>());
        lowest.back() = lower, std::push_heap(lowest.begin(), lowest.end(), std::greater<>());
      }
      if (std::int64_t(lowest.size()) == k) bar = lowest.front();
    }
  }
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), [&](const Candidate &c) { return !(c.upper >= bar); }),
                   candidates.end());
  std::sort(candidates.begin(), candidates.end(), [](const Candidate &a, const Candidate &b) { return a.upper > b.upper; });

  // Read them in the order of their upper bounds, until the k-th best score is above all that are left.
  struct Scored {
    double score; // high is near
    std::int64_t tie, row;
  };
  const auto before = [](const Scored &a, const Scored &b) { return a.score != b.score ? a.score > b.score : a.tie < b.tie; };
  std::vector<Scored> best; // a heap of the k best, the worst of them first
  std::vector<float> stored(values ? 0 : dim);
  const double squares = loops.dot(query, query, dim);
  std::int64_t read = 0;
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    const Candidate &candidate = candidates[c];
    // A score in the units of the estimates: q·x, or q·x − |x|²/2.
    if (std::int64_t(best.size()) == k) {
      const double worst = squared ? (best.front().score + squares) / 2 : best.front().score;
      if (double(candidate.upper) + double(rounding) < worst) break;
    }
    const Part &part = parts[candidate.part];
    const std::int64_t row = part.segment->rows[candidate.at];
    const float *x = values ? values + row * dim : stored.data();
    if (values) {
      if (c + 2 < candidates.size()) {
        const float *next = values + parts[candidates[c + 2].part].segment->rows[candidates[c + 2].at] * dim;
        for (std::int64_t d = 0; d < dim; d += 16) __builtin_prefetch(next + d);
      }
    } else {
      codec->decode(part.segment->codes + candidate.at * stride, 1, stored.data(), 1, isa);
      for (std::int64_t d = 0; d < dim; ++d) stored[d] += centres[part.list * dim + d];
    }
    ++read;
    const Scored scored{squared ? -loops.distance(query, x, dim) : loops.dot(query, x, dim), ids ? ids[row] : row, row};
    if (std::int64_t(best.size()) < k) {
      best.push_back(scored), std::push_heap(best.begin(), best.end(), before);
    } else if (before(scored, best.front())) {
      std::pop_heap(best.begin(), best.end(), before);
      best.back() = scored, std::push_heap(best.begin(), best.end(), before);
    }
  }
  std::sort(best.begin(), best.end(), before);
  constexpr double kFar = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < k; ++i) {
    const bool is_result = i < std::int64_t(best.size());
    scores[i] = is_result ? (squared ? -best[i].score : best[i].score) : (squared ? kFar : -kFar);
    rows[i] = is_result ? best[i].row : -1;
  }
  return read;
}

} // namespace ridgeline
