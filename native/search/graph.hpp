// HNSW: a graph in which each row is linked to near rows in different directions (Malkov and Yashunin, arXiv 1603.09320).
// A search walks along the links towards the query and reads a few hundred rows of a million.
//
// The walk does not read the vectors but codes of one byte per dimension, a quarter of the bytes; the caller's vectors
// decide among the rows that the walk finds. A code row is round((x − centre) / scale) with a scale per row, so that rows
// of any length are coded equally well and nothing must be trained.
//
// Rows with equal values share one node of the graph, the first of them: copies would fill each other's link lists, and
// a walk among them would not find the way out.
//
// Rows are inserted in batches: all threads search the graph as it was before the batch, then all link lists are updated.
// So the graph does not depend on the number of threads. Searches may run during an insertion: link lists are changed by
// atomic stores, and arrays that grow are copied.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "threads/instruction_set.hpp"

namespace ridgeline {

// What follows the codes of a row.
struct RowHeader {
  float scale;  // of the codes
  float half;   // (‖x − centre‖² + extra²) / 2
  float extra;  // for inner products: one more dimension, which makes all rows equally long
  float unused;
};

// score(row) = scale · row.scale · Σ values·codes + extra · row.extra − weight · row.half − constant; high is near.
struct WalkQuery {
  const std::int16_t *values; // [width]
  std::int64_t width;         // dimensions, rounded up to a multiple of 64 by zeros
  float scale, extra, weight, constant;
};

struct GraphLoops {
  // The scores of rows `ids` [n]; row i is at rows + i · stride.
  void (*score)(const WalkQuery &query, const std::int8_t *rows, std::int64_t stride, const std::uint32_t *ids, std::int64_t n,
                float *scores);
};
GraphLoops graph_loops(Isa isa);

// One search: what is the same for all its queries.
struct GraphSearch {
  std::int64_t k, effort;          // effort: rows that the walk keeps (efSearch), at least k
  bool scale_queries;              // to length 1
  const float *values;             // [count, dim] the vectors of the rows
  std::int64_t count;              // rows after these are ignored
  const std::uint8_t *allowed;     // [count], or null
  std::int64_t least;              // of allowed rows that a walk must find, or the query has no result
  const std::int64_t *ids;         // [count] equal scores are sorted by id, or null: by row
  const std::int64_t *skipped;     // [queries] a row that the walk of each query avoids, or null
  double longest, too_large;       // ‖x‖ of the longest row; the largest ‖q‖·‖x‖ (search/metric.py)
};

class Graph {
public:
  // links: of a row in the upper layers, and half of those in the lowest one; effort: rows kept in a walk that builds.
  // unit: all rows have length 1, so that the nearest row has the largest inner product.
  Graph(std::int64_t dim, std::int64_t links, std::int64_t effort, bool squared, bool unit);

  std::int64_t dim() const { return dim_; }
  std::int64_t count() const;
  std::int64_t stride() const { return stride_; }
  std::int64_t links() const { return links_; }

  // Inserts rows count() to `total` of values [total, dim]. One caller at a time.
  void add(const float *values, std::int64_t total, int threads, Isa isa);

  // Writes the k best rows of each query: scores are inner products or squared distances of the values in float64, with
  // −1 and ∓∞ where the walk finds fewer rows. Returns the number of queries with fewer rows; −1, and nothing is written,
  // if a query is not finite or too large.
  std::int64_t search(const float *queries, std::int64_t count, const GraphSearch &search, double *scores, std::int64_t *rows,
              int threads, Isa isa) const;

  // A graph of these rows, numbered in this order. A row that was linked to a row that is missing is linked to that row's
  // neighbours instead (FreshDiskANN, arXiv 2105.09613).
  std::shared_ptr<Graph> select(const std::int64_t *rows, std::int64_t count, int threads, Isa isa) const;

  // The arrays of a saved graph.
  struct Arrays {
    std::vector<float> centre;         // [dim]
    std::vector<std::int8_t> codes;    // [count, stride]
    std::vector<std::uint32_t> links;  // [count, 1 + 2·links] number of links, then the links
    std::vector<std::uint8_t> levels;  // [count]
    std::vector<std::uint32_t> upper;  // [Σ levels, 1 + links]
    std::vector<std::uint32_t> nodes;  // [count] the first row with the same values; empty: each row is its own
    std::int64_t entry = -1;
  };
  Arrays arrays() const;
  void restore(Arrays arrays); // throws std::invalid_argument if they do not fit together

private:
  struct Layers; // the arrays, in memory that does not move
  struct Scratch;
  struct Scored {
    float score;
    std::uint32_t row;
  };
  using Link = std::pair<std::uint32_t, Scored>; // a row that gets a link, and the row it is linked to

  void encode(Layers &to, const float *values, std::int64_t from, std::int64_t total, int threads);
  void find_copies(Layers &layers, const float *values, std::int64_t from, std::int64_t total, int threads);
  void insert(Layers &layers, std::int64_t from, std::int64_t total, int threads, const GraphLoops &loops);
  void add_back_links(Layers &layers, std::vector<Link> &links, int level, int threads, const GraphLoops &loops);
  std::shared_ptr<Layers> reserve(std::int64_t count, std::size_t upper);
  std::shared_ptr<Layers> current() const;

  WalkQuery row_query(const Layers &layers, std::uint32_t row, std::vector<std::int16_t> &values) const;
  std::uint32_t descend(const Layers &layers, const WalkQuery &query, std::uint32_t start, int from, int to,
                        std::uint32_t limit, const GraphLoops &loops, Scratch &scratch) const;
  void walk(const Layers &layers, const WalkQuery &query, std::uint32_t start, int level, std::int64_t effort,
            std::uint32_t limit, const std::uint8_t *allowed, std::uint32_t skipped, const GraphLoops &loops,
            Scratch &scratch) const;
  void choose(const Layers &layers, std::vector<Scored> &candidates, std::int64_t most, const GraphLoops &loops,
              Scratch &scratch) const;
  void search_one(const Layers &layers, const float *query, const GraphSearch &search, std::uint32_t skipped, double *scores,
                  std::int64_t *rows, Isa isa, Scratch &scratch) const;

  std::int64_t dim_, links_, effort_, width_, stride_;
  bool squared_, unit_;
  mutable std::mutex mutex_; // of layers_
  std::shared_ptr<Layers> layers_;
  std::vector<std::uint32_t> table_; // nodes by the hash of their codes, for find_copies; a quarter to half is used
};

} // namespace ridgeline
