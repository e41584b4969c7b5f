#include "relaunch.hpp"

namespace ridgeline {

std::size_t Relaunch::Hash::operator()(const Key &key) const {
  std::uint64_t mixed = 0;
  for (std::int64_t word : key) mixed = (mixed ^ std::uint64_t(word)) * 0x9E3779B97F4A7C15u, mixed ^= mixed >> 29;
  return std::size_t(mixed);
}

bool Relaunch::look(const Objects &objects, std::array<Tensor, kTensors> &tensors, Key &key) const {
  auto *word = key.data();
  for (int k = 0; k < kTensors; ++k) {
    Tensor &t = tensors[k];
    if (Py_TYPE(objects[k]) != type) return false;
    if (!exchange.look(objects[k], t)) return PyErr_Clear(), false;
    // With other strides it may be a view whose sign is still to be turned, as torch has them of complex numbers.
    if (t.dimensions < 1 || t.dimensions > kMost || !t.strides || t.strides[t.dimensions - 1] != 1) return false;
    *word++ = std::int64_t(t.device_type) << 32 | std::uint32_t(t.device);
    *word++ = std::int64_t(t.lanes) << 32 | t.code << 24 | t.bits << 16 | t.dimensions << 8 | int(t.address() & 15);
    for (int d = 0; d < kMost; ++d) *word++ = d < t.dimensions ? t.shape[d] : -1;
    for (int d = 0; d < kMost; ++d) *word++ = d < t.dimensions ? t.strides[d] : -1;
  }
  return true;
}

bool Relaunch::remember(const Objects &objects, std::shared_ptr<Launch> launch) {
  std::array<Tensor, kTensors> tensors;
  Key key;
  if (!look(objects, tensors, key)) return false;
  last = &*known.insert_or_assign(key, std::move(launch)).first; // an element stays where it is
  return true;
}

bool Relaunch::again(const Objects &objects) {
  std::array<Tensor, kTensors> tensors;
  Key key;
  if (known.empty() || !look(objects, tensors, key)) return false;
  if (!last || last->first != key) {
    const auto found = known.find(key);
    if (found == known.end()) return false;
    last = &*found;
  }
  Launch &launch = *last->second;
  static PyObject *const name = PyUnicode_InternFromString("requires_grad");
  PyObject *gradient = PyObject_GetAttr(objects[0], name);
  Py_XDECREF(gradient);
  std::uint64_t stream = 0;
  if (gradient != Py_False || !launch.at_home() || !exchange.stream_of(tensors[0], stream)) return PyErr_Clear(), false;
  for (int k = 0; k < kTensors; ++k) launch.point(k, tensors[k].address());
  launch(stream);
  return true;
}

} // namespace ridgeline
