#include "recommend/neighbours.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS(SolveLoops, compiled_solve_loops)

SolveLoops solve_loops(Isa isa) { return select_compiled_solve_loops(isa); }

namespace {

constexpr std::int64_t kPiece = 16; // items that a thread takes at a time: popular ones take much longer

struct Candidate {
  float value;
  std::int32_t item;
  float likes;
};

bool is_better(const Candidate &a, const Candidate &b) { return a.value != b.value ? a.value > b.value : a.item < b.item; }

// Writes the best candidates; their order in `candidates` changes.
void write_best(std::vector<Candidate> &candidates, std::int64_t row, const Neighbours &to) {
  const std::int64_t some = std::min<std::int64_t>(to.count, std::int64_t(candidates.size()));
  if (some < std::int64_t(candidates.size())) std::nth_element(candidates.begin(), candidates.begin() + some, candidates.end(), is_better);
  std::sort(candidates.begin(), candidates.begin() + some, is_better);
  std::int32_t *items = to.items + row * to.count;
  float *likes = to.likes + row * to.count;
  for (std::int64_t k = 0; k < some; ++k) items[k] = candidates[k].item, likes[k] = candidates[k].likes;
  std::fill(items + some, items + to.count, -1);
  std::fill(likes + some, likes + to.count, 0.0f);
}

// Calls work(scratch, row) for all rows on up to `threads` threads; each has a scratch of `make` for itself. The
// scratches are made here because `run_parallel` must not throw.
template <class Scratch, class Make, class Work>
void for_each_row(std::int64_t rows, int threads, const Make &make, const Work &work) {
  threads = std::max(1, int(std::min<std::int64_t>(threads, (rows + kPiece - 1) / kPiece)));
  std::vector<Scratch> scratches;
  for (int t = 0; t < threads; ++t) scratches.push_back(make());
  std::atomic<std::int64_t> next{0};
  run_parallel(threads, [&](int thread) {
    for (std::int64_t from; (from = next.fetch_add(kPiece)) < rows;)
      for (std::int64_t row = from; row < std::min(rows, from + kPiece); ++row) work(scratches[std::size_t(thread)], row);
  });
}

struct CountScratch {
  std::vector<std::uint32_t> counts; // by item
  std::vector<std::int32_t> touched;
  std::vector<Candidate> candidates;
};

struct SolveScratch {
  std::vector<std::int32_t> place; // by item: its place among the neighbours, −1 if it is none
  std::vector<double> gram, copy, right;
};

} // namespace

void find_neighbours(const Likes &likes, std::int64_t first, std::int64_t last, const Neighbours &nearest,
                     const Neighbours &frequent, int threads) {
  const auto make = [&] {
    CountScratch scratch;
    scratch.counts.resize(std::size_t(likes.items));
    scratch.touched.reserve(std::size_t(likes.items)), scratch.candidates.reserve(std::size_t(likes.items));
    return scratch;
  };
  for_each_row<CountScratch>(last - first, threads, make, [&](CountScratch &scratch, std::int64_t row) {
    const std::int64_t item = first + row;
    const auto length = [&](std::int64_t i) { return double(likes.item_starts[i + 1] - likes.item_starts[i]); };
    for (std::int64_t at = likes.item_starts[item]; at < likes.item_starts[item + 1]; ++at) {
      const std::int64_t user = likes.item_users[at];
      for (std::int64_t e = likes.user_starts[user]; e < likes.user_starts[user + 1]; ++e) {
        const std::int32_t other = likes.user_items[e];
        if (scratch.counts[std::size_t(other)]++ == 0) scratch.touched.push_back(other);
      }
    }
    scratch.candidates.clear();
    for (const std::int32_t other : scratch.touched) {
      const float both = float(scratch.counts[std::size_t(other)]);
      scratch.counts[std::size_t(other)] = 0;
      if (other != item) scratch.candidates.push_back({float(both / std::sqrt(length(item) * length(other))), other, both});
    }
    scratch.touched.clear();
    write_best(scratch.candidates, row, nearest);
    if (frequent.count == 0) return;
    for (Candidate &candidate : scratch.candidates) candidate.value = candidate.likes;
    write_best(scratch.candidates, row, frequent);
  });
}

void solve_neighbours(const CoLikes &likes, const std::int32_t *neighbours, const float *with_item, std::int64_t rows,
                      std::int64_t count, double penalty, float *weights, Isa isa, int threads) {
  const SolveLoops loops = solve_loops(isa);
  const auto make = [&] {
    SolveScratch scratch;
    scratch.place.assign(std::size_t(likes.all), -1);
    scratch.gram.resize(std::size_t(count * count)), scratch.copy.resize(std::size_t(count * count));
    scratch.right.resize(std::size_t(count));
    return scratch;
  };
  for_each_row<SolveScratch>(rows, threads, make, [&](SolveScratch &scratch, std::int64_t row) {
    const std::int32_t *linked = neighbours + row * count;
    float *out = weights + row * count;
    const std::int64_t n = std::find(linked, linked + count, -1) - linked;
    double *gram = scratch.gram.data();
    std::fill(gram, gram + n * n, 0.0);
    for (std::int64_t a = 0; a < n; ++a) scratch.place[std::size_t(linked[a])] = std::int32_t(a);
    for (std::int64_t a = 0; a < n; ++a) {
      const std::int32_t head = likes.head_at[linked[a]];
      for (std::int64_t b = 0; head >= 0 && b < a; ++b)
        if (likes.head_at[linked[b]] >= 0) gram[b * n + a] = likes.head[head * likes.heads + likes.head_at[linked[b]]];
      const std::int64_t list = linked[a] * likes.count;
      for (std::int64_t k = 0; k < likes.count && likes.items[list + k] >= 0; ++k) {
        const std::int32_t b = scratch.place[std::size_t(likes.items[list + k])];
        if (b >= 0) gram[std::min<std::int64_t>(a, b) * n + std::max<std::int64_t>(a, b)] = likes.likes[list + k];
      }
      gram[a * n + a] = likes.user_counts[linked[a]];
    }
    for (std::int64_t a = 0; a < n; ++a) scratch.place[std::size_t(linked[a])] = -1;
    // Pairs that count as 0 can make the matrix indefinite; a larger λ mends that.
    double *copy = scratch.copy.data(), *right = scratch.right.data();
    for (double more = penalty;; more *= 2) {
      std::copy(gram, gram + n * n, copy);
      for (std::int64_t a = 0; a < n; ++a) copy[a * n + a] += more, right[a] = with_item[row * count + a];
      if (loops.solve(copy, right, n) || !std::isfinite(more)) break;
    }
    for (std::int64_t a = 0; a < n; ++a) out[a] = float(right[a]);
    std::fill(out + n, out + count, 0.0f);
  });
}

} // namespace ridgeline
