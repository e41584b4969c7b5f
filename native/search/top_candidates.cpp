#include "search/top_candidates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS(SearchLoops, compiled_search_loops)

SearchLoops search_loops(Isa isa) { return select_compiled_search_loops(isa); }

namespace {
constexpr std::int64_t kPiece = 512; // columns between two reads of the bar; the hits of one piece lie on the stack
constexpr std::int64_t kFirst = 64;  // the same while there is no bar yet and every row is a hit
constexpr float kLowest = -std::numeric_limits<float>::infinity();
} // namespace

TopCandidates::TopCandidates(std::int64_t queries, std::int64_t k, const double *slack) : k_(k), candidates_(queries) {
  for (std::int64_t q = 0; q < queries; ++q) {
    candidates_[q].bar = kLowest;
    candidates_[q].slack = slack[q];
    candidates_[q].capacity = 2 * k + 16; // small: a bar that rises early rejects most rows
  }
}

void TopCandidates::drop_below_bar(Candidates &candidates) {
  const std::int64_t count = std::int64_t(candidates.scores.size());
  if (count < k_) return;
  std::vector<float> ranked(candidates.scores);
  std::nth_element(ranked.begin(), ranked.begin() + (k_ - 1), ranked.end(), [](float a, float b) { return a > b; });
  // Rounded down: the bar may be too low, never too high.
  const float bar = std::nextafterf(float(double(ranked[k_ - 1]) - candidates.slack), kLowest);
  candidates.bar = std::max(candidates.bar, bar);
  std::int64_t to = 0;
  for (std::int64_t i = 0; i < count; ++i)
    if (candidates.scores[i] >= candidates.bar) candidates.scores[to] = candidates.scores[i], candidates.rows[to] = candidates.rows[i], ++to;
  candidates.scores.resize(to), candidates.rows.resize(to);
  candidates.capacity = std::max(candidates.capacity, 2 * to); // many ties: do this less often
}

void TopCandidates::add_scores(const ScoreBlock &block, Isa isa, int threads) {
  const SearchLoops loops = search_loops(isa);
  const auto work = [&](std::int64_t from_query, std::int64_t to_query) {
    std::int32_t hits[kPiece];
    float sums[kPiece];
    for (std::int64_t q = from_query; q < to_query; ++q) {
      Candidates &candidates = candidates_[block.which ? block.which[q] : q];
      const float *scores = block.scores + q * block.columns;
      const float offset = block.offsets ? block.offsets[q] : 0.0f;
      std::int64_t n;
      for (std::int64_t from = 0; from < block.columns; from += n) {
        n = std::min(candidates.bar == kLowest ? kFirst : kPiece, block.columns - from);
        const std::int64_t hit_count =
            loops.above(scores + from, block.biases ? block.biases + from : nullptr, offset, candidates.bar, n, hits, sums);
        for (std::int64_t h = 0; h < hit_count; ++h) {
          const std::int64_t column = from + hits[h], row = block.rows ? block.rows[column] : block.first + column;
          if (block.allowed && !block.allowed[row]) continue;
          candidates.scores.push_back(sums[h]), candidates.rows.push_back(row);
        }
        if (std::int64_t(candidates.scores.size()) > candidates.capacity) drop_below_bar(candidates);
        // The first k rows already give a bar.
        else if (candidates.bar == kLowest && std::int64_t(candidates.scores.size()) >= k_) drop_below_bar(candidates);
      }
    }
  };
  parallel_for(block.queries, 1, threads, work);
}

void TopCandidates::probe(const Probe &probe, const Scoring &score, Isa isa, int threads) {
  std::vector<std::int64_t> starts(probe.count + 1, 0);
  const auto low = [&](std::int64_t k) { return probe.offsets[probe.lists[k]]; };
  for (std::int64_t k = 0; k < probe.count; ++k) starts[k + 1] = starts[k] + probe.offsets[probe.lists[k] + 1] - low(k);
  std::vector<float> scores(starts[probe.count]);
  parallel_for(probe.count, 1, threads, [&](std::int64_t k, std::int64_t) {
    score(low(k), low(k) + starts[k + 1] - starts[k], scores.data() + starts[k]);
  });
  for (std::int64_t k = 0; k < probe.count; ++k)
    add_scores({scores.data() + starts[k], 1, starts[k + 1] - starts[k], nullptr, probe.added ? probe.added + k : nullptr,
          probe.biases ? probe.biases + low(k) : nullptr, low(k), probe.rows ? probe.rows + low(k) : nullptr,
          probe.allowed}, isa, 1);
}

void TopCandidates::finish() {
  for (Candidates &candidates : candidates_) drop_below_bar(candidates);
}

const std::vector<std::int64_t> &TopCandidates::rows(std::int64_t query) { return candidates_[query].rows; }

} // namespace ridgeline
