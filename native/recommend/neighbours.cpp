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
  double value;
  std::int32_t item;
  float likes;
};

bool is_better(const Candidate &a, const Candidate &b) { return a.value != b.value ? a.value > b.value : a.item < b.item; }

// The best `count` of many candidates. Most candidates are below the worst of the best, and end after one comparison.
class BestCandidates {
public:
  explicit BestCandidates(std::int64_t count) : count_(std::size_t(count)) { candidates_.reserve(2 * count_); }

  void add(const Candidate &candidate) {
    if (candidate.value < lowest_ || count_ == 0) return;
    candidates_.push_back(candidate);
    if (candidates_.size() == 2 * count_) {
      drop_worst();
      lowest_ = std::min_element(candidates_.begin(), candidates_.end(), [](auto &a, auto &b) { return a.value < b.value; })->value;
    }
  }

  // Writes row `row` of `to`, best first, and starts again.
  void write(std::int64_t row, const Neighbours &to) {
    drop_worst();
    std::sort(candidates_.begin(), candidates_.end(), is_better);
    std::int32_t *items = to.items + row * to.count;
    float *likes = to.likes + row * to.count;
    for (const Candidate &candidate : candidates_) *items++ = candidate.item, *likes++ = candidate.likes;
    const std::int64_t missing = to.count - std::int64_t(candidates_.size());
    std::fill(items, items + missing, -1);
    std::fill(likes, likes + missing, 0.0f);
    candidates_.clear(), lowest_ = 0;
  }

private:
  void drop_worst() {
    if (candidates_.size() <= count_) return;
    std::nth_element(candidates_.begin(), candidates_.begin() + std::int64_t(count_), candidates_.end(), is_better);
    candidates_.resize(count_);
  }

  std::size_t count_;
  std::vector<Candidate> candidates_;
  double lowest_ = 0;
};

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
  BestCandidates nearest, frequent;
};

struct SolveScratch {
  std::vector<std::int32_t> place; // by item: its place among the neighbours, −1 if it is none
  std::vector<double> gram, copy, right;
};

} // namespace

void find_neighbours(const Likes &likes, std::int64_t first, std::int64_t last, const Neighbours &nearest,
                     const Neighbours &frequent, int threads) {
  const auto make = [&] {
    return CountScratch{std::vector<std::uint32_t>(std::size_t(likes.items)), std::vector<std::int32_t>(std::size_t(likes.items) + 1),
                        BestCandidates(nearest.count), BestCandidates(frequent.count)};
  };
  for_each_row<CountScratch>(last - first, threads, make, [&](CountScratch &scratch, std::int64_t row) {
    const std::int64_t item = first + row;
    std::int32_t *touched = scratch.touched.data();
    std::size_t touched_count = 0;
    const auto length = [&](std::int64_t i) { return double(likes.item_starts[i + 1] - likes.item_starts[i]); };
    for (std::int64_t at = likes.item_starts[item]; at < likes.item_starts[item + 1]; ++at) {
      const std::int64_t user = likes.item_users[at];
      for (std::int64_t e = likes.user_starts[user]; e < likes.user_starts[user + 1]; ++e) {
        const std::int32_t other = likes.user_items[e];
        touched[touched_count] = other; // without a branch, which no CPU could predict
        touched_count += scratch.counts[std::size_t(other)]++ == 0;
      }
    }
    for (std::size_t at = 0; at < touched_count; ++at) {
      const std::int32_t other = touched[at];
      const std::uint32_t both = scratch.counts[std::size_t(other)];
      scratch.counts[std::size_t(other)] = 0;
      if (other == item) continue;
      // The square of the cosine orders in the same way; the item's own length is a factor of all.
      scratch.nearest.add({double(both) * both / length(other), other, float(both)});
      scratch.frequent.add({double(both), other, float(both)});
    }
    scratch.nearest.write(row, nearest);
    if (frequent.count > 0) scratch.frequent.write(row, frequent);
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
