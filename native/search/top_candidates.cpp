#include "search/top_candidates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS(SieveLoops, compiled_search_loops)

SieveLoops sieve_loops(Isa isa) { return select_compiled_search_loops(isa); }

namespace {
constexpr std::int64_t kPiece = 512; // columns between two looks at the bar; hits of one piece lie on the stack
constexpr std::int64_t kFirst = 64;  // the same while there is no bar yet, and all come through
constexpr float kLowest = -std::numeric_limits<float>::infinity();
} // namespace

Sieve::Sieve(std::int64_t queries, std::int64_t k, const double *slack) : k_(k), lanes_(queries) {
  for (std::int64_t q = 0; q < queries; ++q) {
    lanes_[q].bar = kLowest;
    lanes_[q].slack = slack[q];
    lanes_[q].room = 2 * k + 16; // small: a bar that rises early keeps most rows out
  }
}

void Sieve::compact(Lane &lane) {
  const std::int64_t held = std::int64_t(lane.scores.size());
  if (held < k_) return;
  std::vector<float> ranked(lane.scores);
  std::nth_element(ranked.begin(), ranked.begin() + (k_ - 1), ranked.end(), [](float a, float b) { return a > b; });
  // Rounded downwards: the bar may be too low, never too high.
  const float bar = std::nextafterf(float(double(ranked[k_ - 1]) - lane.slack), kLowest);
  lane.bar = std::max(lane.bar, bar);
  std::int64_t to = 0;
  for (std::int64_t i = 0; i < held; ++i)
    if (lane.scores[i] >= lane.bar) lane.scores[to] = lane.scores[i], lane.rows[to] = lane.rows[i], ++to;
  lane.scores.resize(to), lane.rows.resize(to);
  lane.room = std::max(lane.room, 2 * to); // many ties: look less often
}

void Sieve::sift(const ScoreBlock &block, Isa isa, int threads) {
  const SieveLoops loops = sieve_loops(isa);
  const auto work = [&](std::int64_t from_query, std::int64_t to_query) {
    std::int32_t hits[kPiece];
    float sums[kPiece];
    for (std::int64_t q = from_query; q < to_query; ++q) {
      Lane &lane = lanes_[block.which ? block.which[q] : q];
      const float *scores = block.scores + q * block.columns;
      const float offset = block.offsets ? block.offsets[q] : 0.0f;
      std::int64_t n;
      for (std::int64_t from = 0; from < block.columns; from += n) {
        n = std::min(lane.bar == kLowest ? kFirst : kPiece, block.columns - from);
        const std::int64_t found =
            loops.above(scores + from, block.biases ? block.biases + from : nullptr, offset, lane.bar, n, hits, sums);
        for (std::int64_t h = 0; h < found; ++h) {
          const std::int64_t column = from + hits[h], row = block.rows ? block.rows[column] : block.first + column;
          if (block.allowed && !block.allowed[row]) continue;
          lane.scores.push_back(sums[h]), lane.rows.push_back(row);
        }
        if (std::int64_t(lane.scores.size()) > lane.room) compact(lane);
        // The first k rows already give a bar.
        else if (lane.bar == kLowest && std::int64_t(lane.scores.size()) >= k_) compact(lane);
      }
    }
  };
  parallel_for(block.queries, 1, threads, work);
}

void Sieve::probe(const Probe &probe, const Scoring &score, Isa isa, int threads) {
  std::vector<std::int64_t> starts(probe.count + 1, 0);
  const auto low = [&](std::int64_t k) { return probe.offsets[probe.lists[k]]; };
  for (std::int64_t k = 0; k < probe.count; ++k) starts[k + 1] = starts[k] + probe.offsets[probe.lists[k] + 1] - low(k);
  std::vector<float> scores(starts[probe.count]);
  parallel_for(probe.count, 1, threads, [&](std::int64_t k, std::int64_t) {
    score(low(k), low(k) + starts[k + 1] - starts[k], scores.data() + starts[k]);
  });
  for (std::int64_t k = 0; k < probe.count; ++k)
    sift({scores.data() + starts[k], 1, starts[k + 1] - starts[k], nullptr, probe.added ? probe.added + k : nullptr,
          probe.biases ? probe.biases + low(k) : nullptr, low(k), probe.rows ? probe.rows + low(k) : nullptr,
          probe.allowed}, isa, 1);
}

void Sieve::settle() {
  for (Lane &lane : lanes_) compact(lane);
}

const std::vector<std::int64_t> &Sieve::kept(std::int64_t query) { return lanes_[query].rows; }

} // namespace ridgeline
