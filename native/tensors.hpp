// Tensors of another library, as the table of C functions says that their type offers (DLPack's exchange API): what a
// tensor is and which stream is current, without the interpreter. Laid out as DLPack 1 fixes it.
#pragma once

#include <Python.h>

#include <cstdint>
#include <stdexcept>

namespace ridgeline {

struct Tensor { // DLTensor: what it points to belongs to the object that was looked at
  void *data;
  std::int32_t device_type, device, dimensions;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *shape, *strides;
  std::uint64_t offset;

  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(data) + offset; }
};

class Exchange {
public:
  static constexpr const char *kAttribute = "__dlpack_c_exchange_api__", *kCapsule = "dlpack_exchange_api";

  // The table in the capsule; throws std::runtime_error if it knows no version 1 or cannot tell what is asked here.
  explicit Exchange(const void *capsule) : table(static_cast<const Table *>(capsule)) {
    while (table && table->major != 1) table = table->earlier;
    if (!table || !table->look || !table->stream) throw std::runtime_error("its tensors are not told by C functions");
  }

  // False: Python has an error.
  bool look(void *object, Tensor &tensor) const { return table->look(object, &tensor) == 0; }
  bool stream_of(const Tensor &tensor, std::uint64_t &stream) const {
    void *found = nullptr;
    const bool told = table->stream(tensor.device_type, tensor.device, &found) == 0;
    stream = reinterpret_cast<std::uint64_t>(found);
    return told;
  }

private:
  struct Table {
    std::uint32_t major, minor;
    const Table *earlier;
    void *allocate, *give, *take; // not used here
    int (*look)(void *object, Tensor *tensor);
    int (*stream)(std::int32_t device_type, std::int32_t device, void **stream);
  };
  const Table *table;
};

// Of one type, which lives as long as the process, as its table does. Asked with Python's lock held.
class Tensors {
public:
  Tensors(PyTypeObject *type, const void *table) : type(type), exchange(table) {}

  bool has(PyObject *object) const { return Py_TYPE(object) == type; }
  // False, and no Python error, if it is no such tensor, none of numbers in memory, or a view whose signs are still to be
  // turned, as torch has them of complex numbers: which lie apart.
  bool look(PyObject *object, Tensor &tensor) const {
    if (!has(object)) return false;
    if (!exchange.look(object, tensor)) return PyErr_Clear(), false;
    if (tensor.dimensions < 1 || !tensor.strides) return false;
    static PyObject *const name = PyUnicode_InternFromString("is_neg");
    return tensor.strides[tensor.dimensions - 1] == 1 || says_no(PyObject_CallMethodNoArgs(object, name));
  }
  static bool takes_gradient(PyObject *tensor) {
    static PyObject *const name = PyUnicode_InternFromString("requires_grad");
    return !says_no(PyObject_GetAttr(tensor, name));
  }
  bool stream_of(const Tensor &tensor, std::uint64_t &stream) const {
    return exchange.stream_of(tensor, stream) || (PyErr_Clear(), false);
  }

private:
  static bool says_no(PyObject *answer) { // and no Python error
    if (!answer) return PyErr_Clear(), false;
    Py_DECREF(answer); // True and False are never gone
    return answer == Py_False;
  }

  PyTypeObject *type;
  Exchange exchange;
};

} // namespace ridgeline
