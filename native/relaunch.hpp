// A kernel for the same kind of call once more, straight from the objects of the call to its launch. Asked with Python's
// lock held.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "launch.hpp"
#include "tensors.hpp"

namespace ridgeline {

// Launches by all that their kernel was compiled for: where the call's tensors are, their types, shapes, strides and
// alignment.
class Relaunch {
public:
  static constexpr int kTensors = 4; // of a call; their addresses are the launch's, in this order
  using Objects = std::array<PyObject *, kTensors>;

  explicit Relaunch(const Tensors &tensors) : tensors(tensors) {}

  // The next such call may be launched by this. False, and no Python error, if these are none that can be told apart.
  bool remember(const Objects &objects, std::shared_ptr<Launch> launch);
  // Whether it was launched: not where the call is an unknown one, its first tensor takes part in a gradient, another
  // context is current, or the last tensor might lie on one of the others. Throws what the launch throws.
  bool again(const Objects &objects);
  void forget() { known.clear(), last = nullptr; }
  std::size_t size() const { return known.size(); }

private:
  static constexpr int kMost = 3, kWords = 2 + 2 * kMost; // dimensions, and words for a tensor
  using Key = std::array<std::int64_t, kTensors * kWords>;
  struct Hash {
    std::size_t operator()(const Key &key) const;
  };
  bool look(const Objects &objects, std::array<Tensor, kTensors> &found, Key &key) const;

  Tensors tensors;
  std::unordered_map<Key, std::shared_ptr<Launch>, Hash> known;
  const std::pair<const Key, std::shared_ptr<Launch>> *last = nullptr; // most calls are like the one before
};

} // namespace ridgeline
