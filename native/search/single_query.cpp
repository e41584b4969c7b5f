#include "search/single_query.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "search/top_candidates.hpp"
#include "threads/pool.hpp"

namespace ridgeline {

static constexpr std::int64_t kAlone = 1 << 20; // bytes: waking a thread costs as much as reading so many

bool OneQuery::search(const float *query, float *scores, std::int64_t *found, Isa isa) const {
  const SieveLoops loops = sieve_loops(isa);
  double length = std::sqrt(loops.dot(query, query, dim));
  if (!std::isfinite(length)) return false;
  std::vector<float> own;
  if (unit && length > 0) {
    own.resize(dim);
    for (std::int64_t i = 0; i < dim; ++i) own[i] = float(double(query[i]) / length);
    query = own.data();
    length = std::sqrt(loops.dot(query, query, dim));
  }
  const double reach = length * longest + (biases ? longest * longest / 2 : 0);
  if (!(reach < too_large)) return false;
  const double share = double(dim + more_terms) * rounding;
  const double slack = 2 * (share / (1 - share) * reach + double(dim + more_terms) * underflow);

  std::vector<float> near(lists);
  loops.dots(query, centres, dim, lists, near.data());
  if (halves)
    for (std::int64_t l = 0; l < lists; ++l) near[l] -= halves[l];
  std::vector<std::int64_t> wanted(lists);
  std::iota(wanted.begin(), wanted.end(), 0);
  if (nprobe < lists)
    std::nth_element(wanted.begin(), wanted.begin() + nprobe, wanted.end(),
                     [&](std::int64_t a, std::int64_t b) { return near[a] != near[b] ? near[a] > near[b] : a < b; });
  std::int64_t places = 0;
  for (std::int64_t n = 0; n < std::min(nprobe, lists); ++n) places += offsets[wanted[n] + 1] - offsets[wanted[n]];

  Sieve sieve(1, k, &slack);
  const int threads = places * dim * 4 > kAlone ? usable_cpus() : 1;
  sieve.probe({wanted.data(), std::min(nprobe, lists), nullptr, offsets, nullptr, biases, nullptr},
              [&](std::int64_t from, std::int64_t to, float *out) { loops.dots(query, values + from * dim, dim, to - from, out); },
              isa, threads);
  sieve.settle();

  struct Scored {
    double score;
    std::int64_t row;
  };
  std::vector<Scored> kept;
  for (const std::int64_t place : sieve.kept(0)) {
    const float *x = values + place * dim;
    kept.push_back({squared ? loops.distance(query, x, dim) : -loops.dot(query, x, dim), rows[place]});
  }
  const std::int64_t many = std::min<std::int64_t>(k, kept.size());
  std::partial_sort(kept.begin(), kept.begin() + many, kept.end(), [](const Scored &a, const Scored &b) {
    return a.score != b.score ? a.score < b.score : a.row < b.row;
  });
  constexpr float kFar = std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < k; ++i) {
    scores[i] = i >= many ? (squared ? kFar : -kFar) : float(squared ? kept[i].score : -kept[i].score);
    found[i] = i < many ? kept[i].row : -1;
  }
  return true;
}

} // namespace ridgeline
