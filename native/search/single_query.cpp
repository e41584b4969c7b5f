#include "search/single_query.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "search/top_candidates.hpp"
#include "threads/pool.hpp"

namespace ridgeline {

static constexpr std::int64_t kSingleThread = 1 << 20; // bytes: waking a thread costs as much as reading this count

bool SingleQuery::search(const float *query, float *scores, std::int64_t *row_ids, Isa isa) const {
  const SearchLoops loops = search_loops(isa);
  double length = std::sqrt(loops.dot(query, query, dim));
  if (!std::isfinite(length)) return false;
  std::vector<float> unit_query;
  if (unit && length > 0) {
    unit_query.resize(dim);
    for (std::int64_t i = 0; i < dim; ++i) unit_query[i] = float(double(query[i]) / length);
    query = unit_query.data();
    length = std::sqrt(loops.dot(query, query, dim));
  }
  const double reach = length * longest + (biases ? longest * longest / 2 : 0);
  if (!(reach < too_large)) return false;
  const double share = double(dim + more_terms) * rounding;
  const double slack = 2 * (share / (1 - share) * reach + double(dim + more_terms) * underflow);

  std::vector<float> list_scores(lists);
  loops.dots(query, centres, dim, lists, list_scores.data());
  if (halves)
    for (std::int64_t l = 0; l < lists; ++l) list_scores[l] -= halves[l];
  std::vector<std::int64_t> order(lists);
  std::iota(order.begin(), order.end(), 0);
  if (nprobe < lists)
    std::nth_element(order.begin(), order.begin() + nprobe, order.end(),
                     [&](std::int64_t a, std::int64_t b) { return list_scores[a] != list_scores[b] ? list_scores[a] > list_scores[b] : a < b; });
  std::int64_t positions = 0;
  for (std::int64_t n = 0; n < std::min(nprobe, lists); ++n) positions += offsets[order[n] + 1] - offsets[order[n]];

  TopCandidates best(1, k, &slack);
  const int threads = positions * dim * 4 > kSingleThread ? usable_cpus() : 1; // while search_few uses the pool: 1
  best.probe({order.data(), std::min(nprobe, lists), nullptr, offsets, nullptr, biases, nullptr},
              [&](std::int64_t from, std::int64_t to, float *out) { loops.dots(query, values + from * dim, dim, to - from, out); },
              isa, threads);
  best.finish();

  struct Scored {
    double score;
    std::int64_t row;
  };
  std::vector<Scored> candidates;
  for (const std::int64_t position : best.rows(0)) {
    const float *x = values + position * dim;
    candidates.push_back({squared ? loops.distance(query, x, dim) : -loops.dot(query, x, dim), rows[position]});
  }
  const std::int64_t count = std::min<std::int64_t>(k, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end(), [](const Scored &a, const Scored &b) {
    return a.score != b.score ? a.score < b.score : a.row < b.row;
  });
  constexpr float kFar = std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < k; ++i) {
    scores[i] = i >= count ? (squared ? kFar : -kFar) : float(squared ? candidates[i].score : -candidates[i].score);
    row_ids[i] = i < count ? candidates[i].row : -1;
  }
  return true;
}

} // namespace ridgeline
