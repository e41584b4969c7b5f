// Reads tensors of another library through the table of C functions that their type offers (DLPack's exchange API): shape,
// strides, address and the current stream, without calling Python. The layouts are those of DLPack 1.
#pragma once

#include <Python.h>

#include <cstdint>
#include <stdexcept>

namespace ridgeline {

struct Tensor { // DLTensor; its pointers belong to the Python object
  void *data;
  std::int32_t device_type, device, dimensions;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *shape, *strides;
  std::uint64_t offset;

  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(data) + offset; }
};

class ExchangeTable {
public:
  static constexpr const char *kAttribute = "__dlpack_c_exchange_api__", *kCapsule = "dlpack_exchange_api";

  // `capsule` is the content of the capsule. Throws std::runtime_error if it has no version 1 or lacks a function.
  explicit ExchangeTable(const void *capsule) : table(static_cast<const Table *>(capsule)) {
    while (table && table->major != 1) table = table->earlier;
    if (!table || !table->read || !table->stream)
      throw std::runtime_error("this type offers no C functions for its tensors (DLPack's exchange API, version 1)");
  }

  // False: Python has an error.
  bool read(void *object, Tensor &tensor) const { return table->read(object, &tensor) == 0; }
  bool read_stream(const Tensor &tensor, std::uint64_t &stream) const {
    void *pointer = nullptr;
    const bool success = table->stream(tensor.device_type, tensor.device, &pointer) == 0;
    stream = reinterpret_cast<std::uint64_t>(pointer);
    return success;
  }

private:
  struct Table {
    std::uint32_t major, minor;
    const Table *earlier;
    void *allocate, *from_python, *to_python; // unused
    int (*read)(void *object, Tensor *tensor);
    int (*stream)(std::int32_t device_type, std::int32_t device, void **stream);
  };
  const Table *table;
};

// Reads the tensors of one Python type. The type and its table live until the process ends. Call it with the GIL held.
class TensorReader {
public:
  TensorReader(PyTypeObject *type, const void *table) : type(type), exchange(table) {}

  bool accepts(PyObject *object) const { return Py_TYPE(object) == type; }
  // False, and no Python error, if the object has another type, has no numbers in memory, or is a view whose signs torch
  // has yet to flip (the imaginary part of conjugated numbers; such views are strided).
  bool read(PyObject *object, Tensor &tensor) const {
    if (!accepts(object)) return false;
    if (!exchange.read(object, tensor)) return PyErr_Clear(), false;
    if (tensor.dimensions < 1 || !tensor.strides) return false;
    static PyObject *const name = PyUnicode_InternFromString("is_neg");
    return tensor.strides[tensor.dimensions - 1] == 1 || is_false(PyObject_CallMethodNoArgs(object, name));
  }
  static bool requires_grad(PyObject *tensor) {
    static PyObject *const name = PyUnicode_InternFromString("requires_grad");
    return !is_false(PyObject_GetAttr(tensor, name));
  }
  bool read_stream(const Tensor &tensor, std::uint64_t &stream) const {
    return exchange.read_stream(tensor, stream) || (PyErr_Clear(), false);
  }

private:
  static bool is_false(PyObject *result) { // and clears an error of Python
    if (!result) return PyErr_Clear(), false;
    Py_DECREF(result); // True and False are never freed
    return result == Py_False;
  }

  PyTypeObject *type;
  ExchangeTable exchange;
};

} // namespace ridgeline
