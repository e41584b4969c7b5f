// Launches of earlier calls, looked up by the tensors of the next call, without calling Python.
//
// Why: the Python function that prepares a launch takes 9 to 12 µs, the launch itself 4 to 5. How much: the call takes 2.6
// to 3.1 times as long without the cache (benchmarks/records/h200-trajectory-calls.txt, measured on an H200).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "memory/dlpack.hpp"
#include "resample/launch.hpp"

namespace ridgeline {

// The key is everything that a kernel was compiled for: device, types, shapes, strides and alignment of the tensors.
// Call it with the GIL held.
class LaunchCache {
public:
  static constexpr int kTensors = 4; // of a call; the launch takes their addresses in this order, the last is written
  using Objects = std::array<PyObject *, kTensors>;

  explicit LaunchCache(const TensorReader &reader) : reader(reader) {}

  // The next call with such tensors may use `launch`. False, and no Python error, if the tensors cannot be read.
  bool add(const Objects &objects, std::shared_ptr<Launch> launch);
  // Whether it launched the kernel. It does not if the call is unknown, the first tensor requires a gradient, another
  // context is current, or the last tensor may overlap another. Throws what the launch throws.
  bool launch(const Objects &objects);
  void clear() { launches.clear(), last = nullptr; }
  std::size_t size() const { return launches.size(); }

private:
  static constexpr int kMostDimensions = 3, kWords = 2 + 2 * kMostDimensions; // of the key, for each tensor
  using Key = std::array<std::int64_t, kTensors * kWords>;
  struct Hash {
    std::size_t operator()(const Key &key) const;
  };
  bool read(const Objects &objects, std::array<Tensor, kTensors> &tensors, Key &key) const;

  TensorReader reader;
  std::unordered_map<Key, std::shared_ptr<Launch>, Hash> launches;
  const std::pair<const Key, std::shared_ptr<Launch>> *last = nullptr; // most calls repeat the previous one
};

} // namespace ridgeline
