// Python names of recommend/: find_neighbours, solve_neighbours and sum_rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "bind.hpp"
#include "recommend/neighbours.hpp"
#include "recommend/row_sums.hpp"
#include "released_gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

template <class T, int N> using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Starts = Array<const std::int64_t, 1>;
using Indices = Array<const std::int32_t, 1>;

// Checks compressed rows: starts rise to the number of entries, and entries lie in [0, limit).
void check_rows(const Starts &starts, const Indices &entries, std::int64_t limit) {
  const std::int64_t rows = std::int64_t(starts.shape(0)) - 1, count = std::int64_t(entries.shape(0));
  if (rows < 0 || starts.data()[0] != 0 || starts.data()[rows] != count) throw std::invalid_argument("starts do not fit the entries");
  for (std::int64_t r = 0; r < rows; ++r)
    if (starts.data()[r + 1] < starts.data()[r]) throw std::invalid_argument("starts must rise");
  for (std::int64_t e = 0; e < count; ++e)
    if (entries.data()[e] < 0 || entries.data()[e] >= limit) throw std::invalid_argument("an entry lies outside the rows");
}

template <class A> void check_items(const A &items, std::int64_t limit) {
  const std::int64_t count = std::int64_t(items.size());
  for (std::int64_t k = 0; k < count; ++k)
    if (items.data()[k] < -1 || items.data()[k] >= limit) throw std::invalid_argument("an item lies outside the catalogue");
}

} // namespace

void bind_recommend(nb::module_ &m) {
  m.def("find_neighbours", [](Starts user_starts, Indices user_items, Starts item_starts, Indices item_users, std::int64_t first,
                              Array<std::int32_t, 2> nearest, Array<float, 2> nearest_likes, Array<std::int32_t, 2> frequent,
                              Array<float, 2> frequent_likes, int threads) {
    const std::int64_t items = std::int64_t(item_starts.shape(0)) - 1, rows = std::int64_t(nearest.shape(0));
    check_rows(user_starts, user_items, items);
    check_rows(item_starts, item_users, std::int64_t(user_starts.shape(0)) - 1);
    if (first < 0 || first + rows > items) throw std::invalid_argument("the rows lie outside the items");
    if (nearest_likes.shape(0) != nearest.shape(0) || nearest_likes.shape(1) != nearest.shape(1) || frequent.shape(0) != nearest.shape(0) ||
        frequent_likes.shape(0) != frequent.shape(0) || frequent_likes.shape(1) != frequent.shape(1))
      throw std::invalid_argument("the outputs differ in shape");
    const Likes likes{user_starts.data(), user_items.data(), item_starts.data(), item_users.data(), items};
    ReleasedGil release;
    find_neighbours(likes, first, first + rows, {nearest.data(), nearest_likes.data(), std::int64_t(nearest.shape(1))},
                    {frequent.data(), frequent_likes.data(), std::int64_t(frequent.shape(1))}, threads);
  }, "user_starts"_a.noconvert(), "user_items"_a.noconvert(), "item_starts"_a.noconvert(), "item_users"_a.noconvert(), "first"_a,
     "nearest"_a.noconvert(), "nearest_likes"_a.noconvert(), "frequent"_a.noconvert(), "frequent_likes"_a.noconvert(), "threads"_a = 1,
     "For the items first, first + 1 …: write the nearest ones by cosine and those with the most users in common, with the\n"
     "number of these users; -1 and 0 where there are fewer. Each user has each item once.");

  m.def("solve_neighbours", [](Array<const std::int32_t, 2> frequent, Array<const float, 2> frequent_likes, Array<const float, 1> user_counts,
                               Indices head_at, Array<const float, 2> head, Array<const std::int32_t, 2> neighbours,
                               Array<const float, 2> with_item, double penalty, Array<float, 2> weights, int threads, const std::string &isa) {
    const std::int64_t items = std::int64_t(user_counts.shape(0)), heads = std::int64_t(head.shape(0));
    if (std::int64_t(frequent.shape(0)) != items || frequent_likes.shape(0) != frequent.shape(0) || frequent_likes.shape(1) != frequent.shape(1) ||
        std::int64_t(head_at.shape(0)) != items || head.shape(1) != head.shape(0))
      throw std::invalid_argument("the inputs differ in shape");
    if (with_item.shape(0) != neighbours.shape(0) || with_item.shape(1) != neighbours.shape(1) || weights.shape(0) != neighbours.shape(0) ||
        weights.shape(1) != neighbours.shape(1))
      throw std::invalid_argument("neighbours, with_item and weights differ in shape");
    if (!(penalty > 0)) throw std::invalid_argument("the penalty must be above 0");
    check_items(frequent, items), check_items(neighbours, items), check_items(head_at, heads);
    const CoLikes likes{frequent.data(), frequent_likes.data(), std::int64_t(frequent.shape(1)), user_counts.data(), head_at.data(), head.data(), heads, items};
    const Isa set = parse_isa(isa);
    ReleasedGil release;
    solve_neighbours(likes, neighbours.data(), with_item.data(), std::int64_t(neighbours.shape(0)), std::int64_t(neighbours.shape(1)), penalty,
                     weights.data(), set, threads);
  }, "frequent"_a.noconvert(), "frequent_likes"_a.noconvert(), "user_counts"_a.noconvert(), "head_at"_a.noconvert(), "head"_a.noconvert(),
     "neighbours"_a.noconvert(), "with_item"_a.noconvert(), "penalty"_a, "weights"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "weights [rows, count] of (G + penalty·I) w = with_item over each row's neighbours (-1: no more). G has users of both\n"
     "items: from head [heads, heads] for items with a place in head_at, else from the lists `frequent` of either item.");

  m.def("sum_rows", [](Array<const float, 2> table, Array<const std::int64_t, 1> rows, Array<const float, 2> weights, Array<float, 2> out,
                       int threads, const std::string &isa) {
    const std::int64_t count = std::int64_t(rows.shape(0)), kinds = std::int64_t(weights.shape(0)), all = std::int64_t(table.shape(0));
    if (weights.shape(1) != rows.shape(0) || out.shape(0) != weights.shape(0) || out.shape(1) != table.shape(1))
      throw std::invalid_argument("table, rows, weights and out differ in shape");
    for (std::int64_t l = 0; l < count; ++l)
      if (rows.data()[l] < 0 || rows.data()[l] >= all) throw std::invalid_argument("a row lies outside the table");
    const Isa set = parse_isa(isa);
    ReleasedGil release;
    sum_rows({table.data(), std::int64_t(table.shape(1))}, rows.data(), count, weights.data(), kinds, out.data(), set, threads);
  }, "table"_a.noconvert(), "rows"_a.noconvert(), "weights"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "out [kinds, width] = weights [kinds, count] · table[rows], in float32 and in the order of rows. A weight of 0\n"
     "leaves its row out.");
}

} // namespace ridgeline
