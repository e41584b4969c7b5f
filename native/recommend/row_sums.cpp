#include "recommend/row_sums.hpp"

#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS(RowSumLoops, compiled_row_sum_loops)

void sum_rows(const RowTable &table, const std::int64_t *rows, std::int64_t count, const float *weights, std::int64_t kinds,
              float *out, Isa isa, int threads) {
  const RowSumLoops loops = select_compiled_row_sum_loops(isa);
  parallel_for(table.width, 1'024, threads, [&](std::int64_t from, std::int64_t to) {
    loops.sum(table, rows, count, weights, kinds, out, from, to);
  });
}

} // namespace ridgeline
