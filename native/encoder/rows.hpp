// Rows of memory: scatter rows, sort texts by length, and compute the mean row of each text, with several threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridgeline {

// Copies row k of `from` to row rows[k] of `to`, `width` bytes each.
void scatter_rows(std::byte *to, const std::int64_t *rows, std::size_t count, const std::byte *from, std::size_t width,
                  int threads);

// Sorts the texts of `ids` (text k is offsets[k] to offsets[k + 1]) by length, stably. Writes packed [all], starts [texts + 1], order [texts].
void sort_by_length(const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts, std::int32_t *packed,
               std::int64_t *starts, std::int64_t *order);

// Writes the mean of rows offsets[k] to offsets[k + 1] for every text k to [texts, width]; NaN for a text without rows.
// `unit`: scaled to length 1, unless it is shorter than 1e-12.
void mean_rows(const float *rows, const std::int64_t *offsets, std::size_t texts, std::size_t width, bool unit, float *to,
               int threads);

// Makes the kernel map the pages of new memory now. The content stays, also if another thread writes at the same time.
void touch_pages(std::byte *memory, std::size_t bytes);

} // namespace ridgeline
