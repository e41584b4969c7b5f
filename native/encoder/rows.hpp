// Rows of memory moved by several threads: results to where they belong, texts into the order of their lengths; and the
// mean of each text's rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridgeline {

// Row k of `from` to row rows[k] of `to`, `width` bytes each.
void scatter_rows(std::byte *to, const std::int64_t *rows, std::size_t count, const std::byte *from, std::size_t width,
                  int threads);

// Texts of `ids` (text k is offsets[k] to offsets[k + 1]) by rising length, equal ones in their order:
// packed [all], starts [texts + 1], order [texts].
void by_length(const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts, std::int32_t *packed,
               std::int64_t *starts, std::int64_t *order);

// The mean of rows offsets[k] to offsets[k + 1] [·, width], for every k [texts, width]; of no rows it is NaN. `unit`: made
// as long as 1, unless it is shorter than 1e-12.
void mean_rows(const float *rows, const std::int64_t *offsets, std::size_t texts, std::size_t width, bool unit, float *to,
               int threads);

// Have the kernel give fresh memory its pages now. What is in it stays, also if another thread writes meanwhile.
void give_pages(std::byte *memory, std::size_t bytes);

} // namespace ridgeline
