#include "relaunch.hpp"

#include "extent.hpp"

namespace ridgeline {

std::size_t Relaunch::Hash::operator()(const Key &key) const {
  std::uint64_t mixed = 0;
  for (std::int64_t word : key) mixed = (mixed ^ std::uint64_t(word)) * 0x9E3779B97F4A7C15u, mixed ^= mixed >> 29;
  return std::size_t(mixed);
}

bool Relaunch::look(const Objects &objects, std::array<Tensor, kTensors> &found, Key &key) const {
  auto *word = key.data();
  for (int k = 0; k < kTensors; ++k) {
    Tensor &t = found[k];
    if (!tensors.look(objects[k], t) || t.dimensions > kMost) return false;
    *word++ = std::int64_t(t.device_type) << 32 | std::uint32_t(t.device);
    *word++ = std::int64_t(t.lanes) << 32 | t.code << 24 | t.bits << 16 | t.dimensions << 8 | int(t.address() & 15);
    for (int d = 0; d < kMost; ++d) *word++ = d < t.dimensions ? t.shape[d] : -1;
    for (int d = 0; d < kMost; ++d) *word++ = d < t.dimensions ? t.strides[d] : -1;
  }
  return true;
}

bool Relaunch::remember(const Objects &objects, std::shared_ptr<Launch> launch) {
  std::array<Tensor, kTensors> found;
  Key key;
  if (!look(objects, found, key)) return false;
  last = &*known.insert_or_assign(key, std::move(launch)).first; // an element stays where it is
  return true;
}

static Extent extent_of(const Tensor &t) { return {t.address(), t.shape, t.strides, t.dimensions, t.bits * t.lanes / 8}; }

// Whether the last one, which is written, was not spread and lies nowhere that is read.
static bool apart(const std::array<Tensor, Relaunch::kTensors> &tensors) {
  const Tensor &out = tensors.back();
  if (folded(out.shape, out.strides, out.dimensions)) return false;
  for (const Tensor &input : tensors)
    if (&input != &out && !extent_of(input).apart(extent_of(out))) return false;
  return true;
}

bool Relaunch::again(const Objects &objects) {
  std::array<Tensor, kTensors> found;
  Key key;
  if (known.empty() || !look(objects, found, key)) return false;
  if (!last || last->first != key) {
    const auto place = known.find(key);
    if (place == known.end()) return false;
    last = &*place;
  }
  Launch &launch = *last->second;
  std::uint64_t stream = 0;
  if (!apart(found) || Tensors::takes_gradient(objects[0]) || !launch.at_home() || !tensors.stream_of(found[0], stream))
    return false;
  for (int k = 0; k < kTensors; ++k) launch.point(k, found[k].address());
  launch(stream);
  return true;
}

} // namespace ridgeline
