// Items that the same users like, and EASE's weights over them: what a catalogue too large for a matrix of all pairs
// needs (recommend/models/neighbour_ease.py).
//
// What: for each item, the users who like it are read, and their other likes are counted in an array with one counter
// per item. So the time is the sum of the squared lengths of the histories, and the memory one array per thread.
// Why: SciPy's sparse product makes and sorts all pairs of items, of which most are thrown away at once.
#pragma once

#include <cstdint>

#include "threads/instruction_set.hpp"

namespace ridgeline {

struct Likes {
  const std::int64_t *user_starts; // [users + 1]
  const std::int32_t *user_items;  // the items of user u are user_items[user_starts[u]:user_starts[u + 1]], each once
  const std::int64_t *item_starts; // [items + 1]
  const std::int32_t *item_users;
  std::int64_t items;
};

// The `count` first items of each row with the number of users who like both; −1 and 0 where there are fewer.
struct Neighbours {
  std::int32_t *items; // [rows, count]
  float *likes;        // [rows, count]
  std::int64_t count;
};

// For the items [first, last): `nearest` by cosine and `frequent` by the number of users, best first, ties by item.
void find_neighbours(const Likes &likes, std::int64_t first, std::int64_t last, const Neighbours &nearest,
                     const Neighbours &frequent, int threads);

struct CoLikes {
  const std::int32_t *items; // [all items, count]: Neighbours of all items by the number of users
  const float *likes;
  std::int64_t count;
  const float *user_counts;            // [all items] users of the item
  const std::int32_t *head_at; // [all items] place of an item in `head`, −1 if it has none
  const float *head;           // [heads, heads] users of both items
  std::int64_t heads, all;
};

// weights [rows, count]: for each item the solution of (G + λI) w = g over its neighbours, with G the co-likes of the
// neighbours and g those with the item. A pair in neither `head` nor in the lists of its two items counts as 0.
void solve_neighbours(const CoLikes &likes, const std::int32_t *neighbours, const float *with_item, std::int64_t rows,
                      std::int64_t count, double penalty, float *weights, Isa isa, int threads);

struct SolveLoops {
  // Solves A x = b by Cholesky. a [n, n] is the upper triangle of A and is overwritten, b [n] becomes x. False if A is
  // not positive definite.
  bool (*solve)(double *a, double *b, std::int64_t n);
};
SolveLoops solve_loops(Isa isa);

} // namespace ridgeline
