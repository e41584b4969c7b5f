// The range of memory that the items of an array lie in. Two ranges that do not intersect cannot share an item. Views that
// interleave within one range share no item either, but only numpy's solver can tell.
#pragma once

#include <cstdint>

namespace ridgeline {

struct MemoryRange {
  std::uint64_t from = 0, to = 0; // empty for an array without items

  // Strides count items of `item` bytes.
  MemoryRange(std::uint64_t address, const std::int64_t *sizes, const std::int64_t *strides, int dimensions, std::int64_t item)
      : from(address), to(address + item) {
    for (int k = 0; k < dimensions; ++k) {
      if (sizes[k] == 0) {
        to = from;
        return;
      }
      const std::int64_t reach = (sizes[k] - 1) * strides[k] * item;
      (reach < 0 ? from : to) += reach;
    }
  }

  bool intersects(const MemoryRange &other) const {
    return from < to && other.from < other.to && from < other.to && other.from < to;
  }
};

// Whether several items of one array lie at the same address, because a dimension was expanded with stride 0.
inline bool is_expanded(const std::int64_t *sizes, const std::int64_t *strides, int dimensions) {
  bool expanded = false;
  for (int k = 0; k < dimensions; ++k) {
    if (sizes[k] == 0) return false;
    expanded |= sizes[k] > 1 && strides[k] == 0;
  }
  return expanded;
}

} // namespace ridgeline
