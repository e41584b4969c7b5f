#include "encoder/rows.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "threads/pool.hpp"

namespace ridgeline {

namespace {
constexpr std::size_t kPage = 4096;         // the smallest page; with larger pages most touches cost nothing
constexpr std::size_t kPiece = 256 << 10;   // bytes a thread takes at a time
constexpr std::size_t kSingleThread = 1 << 20;     // bytes: below this, waking threads takes longer
constexpr double kShortest = 1e-12;         // of a vector, as in torch
constexpr std::int64_t kCountingSort = 1 << 16;  // lengths up to this use counting sort
} // namespace

void scatter_rows(std::byte *to, const std::int64_t *rows, std::size_t count, const std::byte *from, std::size_t width,
                  int threads) {
  const std::size_t piece = std::max<std::size_t>(1, kPiece / std::max<std::size_t>(1, width));
  std::atomic<std::size_t> next{0};
  const auto work = [&](int) {
    for (std::size_t first; (first = next.fetch_add(piece)) < count;)
      for (std::size_t k = first; k < std::min(count, first + piece); ++k)
        std::memcpy(to + std::size_t(rows[k]) * width, from + k * width, width);
  };
  if (threads < 2 || count * width < kSingleThread) work(0);
  else run_parallel(threads, work);
}

void mean_rows(const float *rows, const std::int64_t *offsets, std::size_t texts, std::size_t width, bool unit, float *to,
               int threads) {
  std::atomic<std::size_t> next{0};
  const auto work = [&](int) {
    for (std::size_t k; (k = next.fetch_add(1)) < texts;) {
      float *__restrict sum = to + k * width;
      std::fill(sum, sum + width, 0.0f);
      for (std::int64_t r = offsets[k]; r < offsets[k + 1]; ++r) {
        const float *__restrict row = rows + std::size_t(r) * width;
        for (std::size_t f = 0; f < width; ++f) sum[f] += row[f];
      }
      float per_row = 1 / float(offsets[k + 1] - offsets[k]);
      if (unit) {
        double squares = 0;
        for (std::size_t f = 0; f < width; ++f) squares += double(sum[f]) * sum[f];
        const double length = std::sqrt(squares) * per_row;
        per_row = float(per_row / (length < kShortest ? kShortest : length)); // NaN stays
      }
      for (std::size_t f = 0; f < width; ++f) sum[f] *= per_row;
    }
  };
  const std::size_t bytes = texts ? std::size_t(offsets[texts] - offsets[0]) * width * sizeof(float) : 0;
  if (threads < 2 || bytes < kSingleThread) work(0);
  else run_parallel(threads, work);
}

void sort_by_length(const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts, std::int32_t *packed,
               std::int64_t *starts, std::int64_t *order) {
  const auto length = [&](std::int64_t k) { return offsets[k + 1] - offsets[k]; };
  std::int64_t longest = 0;
  for (std::size_t k = 0; k < texts; ++k) longest = std::max(longest, length(std::int64_t(k)));
  if (longest <= kCountingSort) {
    std::vector<std::int64_t> next_index(std::size_t(longest) + 2, 0);
    for (std::size_t k = 0; k < texts; ++k) ++next_index[std::size_t(length(std::int64_t(k))) + 1];
    std::partial_sum(next_index.begin(), next_index.end(), next_index.begin());
    for (std::size_t k = 0; k < texts; ++k) order[next_index[std::size_t(length(std::int64_t(k)))]++] = std::int64_t(k);
  } else {
    std::iota(order, order + texts, 0);
    std::stable_sort(order, order + texts, [&](auto a, auto b) { return length(a) < length(b); });
  }
  starts[0] = 0;
  for (std::size_t k = 0; k < texts; ++k) {
    const std::int64_t n = length(order[k]);
    std::memcpy(packed + starts[k], ids + offsets[order[k]], std::size_t(n) * sizeof(std::int32_t));
    starts[k + 1] = starts[k] + n;
  }
}

void touch_pages(std::byte *memory, std::size_t bytes) {
  // An atomic "or 0" is a write for the kernel and changes nothing for other threads. madvise could do this in one call, but
  // only for complete pages and not on every kernel.
  for (std::size_t at = 0; at < bytes; at += kPage)
    __atomic_fetch_or(reinterpret_cast<unsigned char *>(memory + at), 0, __ATOMIC_RELAXED);
}

} // namespace ridgeline
