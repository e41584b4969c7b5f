// The stretch of memory that an array's items lie in: whether what is written might lie on what is read. Views that take
// turns within one stretch are apart all the same; who wants to know that has to solve an equation, which numpy does.
#pragma once

#include <cstdint>

namespace ridgeline {

struct Extent {
  std::uint64_t from = 0, to = 0; // no items: nothing

  Extent(std::uint64_t address, const std::int64_t *sizes, const std::int64_t *strides, int dimensions, std::int64_t item)
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

  bool apart(const Extent &other) const {
    return to <= other.from || other.to <= from || from == to || other.from == other.to;
  }
};

// Whether items of one array lie on each other because it was spread over a dimension.
inline bool folded(const std::int64_t *sizes, const std::int64_t *strides, int dimensions) {
  bool spread = false;
  for (int k = 0; k < dimensions; ++k) {
    if (sizes[k] == 0) return false;
    spread |= sizes[k] > 1 && strides[k] == 0;
  }
  return spread;
}

} // namespace ridgeline
