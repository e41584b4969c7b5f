// The shortest path from Python to the loops of resample(), for its most common call: values [B, S, D], times [B, S] and
// at [B, T], linear, clamped at the ends.
//
// What: numpy arrays are read through numpy's C API and torch tensors through DLPack's exchange API. A call that does not
// fit returns None, and Python takes the general path.
// Why: nanobind's ndarray conversion and the checks in Python take longer than the loops for a few trajectories.
// How much: all of resample() takes 2.0 µs for one trajectory; the general binding alone, with `out` given and without any
// check in Python, takes 2.2 to 4.1 µs (records/cascade-lake-threads.txt). The general path was not timed on that machine;
// on an H200's host it took 25 µs and the short path 2.5 µs for tensors (records/h200-trajectory-calls.txt).
#include <algorithm>

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include "bind.hpp"
#include "memory/dlpack.hpp"
#include "memory/overlap.hpp"
#include "released_gil.hpp"
#include "resample/resample.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

// An array as the loops see it.
struct View {
  bool valid = false, writable = true;
  int value_type = -1, time_type = -1; // a ValueType, a TimeType; -1: it cannot be one
  void *data = nullptr;
  std::int64_t item_bytes = 0, size[3], stride[3]; // strides count items

  MemoryRange range(int dimensions) const {
    return {reinterpret_cast<std::uint64_t>(data), size, stride, dimensions, item_bytes};
  }
};

struct NumpyArrays {
  View view(PyObject *object, int dimensions) const {
    View v;
    auto *array = reinterpret_cast<PyArrayObject *>(object);
    if (!PyArray_CheckExact(object) || PyArray_NDIM(array) != dimensions || !PyArray_ISALIGNED(array) ||
        !PyArray_ISNOTSWAPPED(array))
      return v;
    switch (PyArray_TYPE(array)) {
    case NPY_HALF: v.value_type = int(ValueType::f16); break;
    case NPY_FLOAT: v.value_type = int(ValueType::f32), v.time_type = int(TimeType::f32); break;
    case NPY_DOUBLE: v.value_type = int(ValueType::f64), v.time_type = int(TimeType::f64); break;
    case NPY_LONG: v.time_type = sizeof(long) == 8 ? int(TimeType::i64) : -1; break;
    case NPY_LONGLONG: v.time_type = int(TimeType::i64); break;
    default: return v; // such items may have a size of 0
    }
    v.item_bytes = PyArray_ITEMSIZE(array);
    for (int k = 0; k < dimensions; ++k) {
      v.size[k] = PyArray_DIM(array, k), v.stride[k] = PyArray_STRIDE(array, k) / v.item_bytes;
      if (v.stride[k] * v.item_bytes != PyArray_STRIDE(array, k)) return v;
    }
    v.valid = true, v.writable = PyArray_ISWRITEABLE(array), v.data = PyArray_DATA(array);
    return v;
  }
  PyObject *make_result(PyObject *values, const ResampleJob &job) const {
    npy_intp shape[] = {npy_intp(job.batch), npy_intp(job.targets), npy_intp(job.channels)};
    PyArray_Descr *type = PyArray_DESCR(reinterpret_cast<PyArrayObject *>(values));
    Py_INCREF(type); // PyArray_Empty takes a reference
    return PyArray_Empty(3, shape, type, 0);
  }
};

struct HostTensors {
  const TensorReader &reader;

  View view(PyObject *object, int dimensions) const {
    static constexpr int kHost = 1, kInteger = 0, kFloat = 2, kBfloat = 4; // DLPack's numbers
    View v;
    Tensor t;
    if (!reader.read(object, t) || t.device_type != kHost || t.dimensions != dimensions || t.lanes != 1) return v;
    switch (t.code << 8 | t.bits) {
    case kFloat << 8 | 16: v.value_type = int(ValueType::f16); break;
    case kBfloat << 8 | 16: v.value_type = int(ValueType::bf16); break;
    case kFloat << 8 | 32: v.value_type = int(ValueType::f32), v.time_type = int(TimeType::f32); break;
    case kFloat << 8 | 64: v.value_type = int(ValueType::f64), v.time_type = int(TimeType::f64); break;
    case kInteger << 8 | 64: v.time_type = int(TimeType::i64); break;
    }
    for (int k = 0; k < dimensions; ++k) v.size[k] = t.shape[k], v.stride[k] = t.strides[k];
    v.valid = true, v.data = reinterpret_cast<void *>(t.address()), v.item_bytes = t.bits / 8;
    return v;
  }
  PyObject *make_result(PyObject *values, const ResampleJob &job) const {
    static PyObject *const name = PyUnicode_InternFromString("new_empty");
    const nb::object shape = nb::steal(Py_BuildValue("(LLL)", static_cast<long long>(job.batch),
                                                     static_cast<long long>(job.targets), static_cast<long long>(job.channels)));
    return shape.is_valid() ? PyObject_CallMethodOneArg(values, name, shape.ptr()) : nullptr;
  }
};

// The caller's `out` must have the right type and shape and must not overlap the inputs.
bool accepts_result(const View &out, const ResampleJob &job, const MemoryRange (&inputs)[3]) {
  if (!out.valid || !out.writable || out.value_type != int(job.value_type) || out.size[0] != job.batch ||
      out.size[1] != job.targets || out.size[2] != job.channels || is_expanded(out.size, out.stride, 3))
    return false;
  return std::none_of(std::begin(inputs), std::end(inputs), [&](const MemoryRange &in) { return in.intersects(out.range(3)); });
}

// The result, or None if the call does not fit or its stamps are unsorted. Then it has not written to the caller's `out`.
template <class Library>
nb::object run(const Library &library, nb::handle values_object, nb::handle times_object, nb::handle at_object,
               nb::handle out_object, bool check) {
  const View values = library.view(values_object.ptr(), 3);
  if (!values.valid || values.value_type < 0) return nb::none();
  const View times = library.view(times_object.ptr(), 2), at = library.view(at_object.ptr(), 2);
  ResampleJob job{};
  job.batch = values.size[0], job.stamps = values.size[1], job.channels = values.size[2];
  if (!times.valid || !at.valid || times.time_type < 0 || times.time_type != at.time_type || times.size[0] != job.batch ||
      times.size[1] != job.stamps || at.size[0] != job.batch)
    return nb::none();
  job.targets = at.size[1];
  job.value_type = ValueType(values.value_type), job.time_type = TimeType(times.time_type);
  job.values = values.data, job.times = times.data, job.at = at.data;
  std::copy_n(values.stride, 3, job.value_stride);
  std::copy_n(times.stride, 2, job.time_stride), std::copy_n(at.stride, 2, job.at_stride);
  job.groups = {{0, job.channels, Kind::linear}};
  job.outside = Outside::clamp;

  const bool to_caller = !out_object.is_none();
  nb::object result = to_caller ? nb::borrow(out_object) : nb::steal(library.make_result(values_object.ptr(), job));
  if (!result.is_valid()) return PyErr_Clear(), nb::none(); // no memory: the general path raises the error
  const View out = library.view(result.ptr(), 3);
  if (to_caller ? !accepts_result(out, job, {values.range(3), times.range(2), at.range(2)}) : !out.valid) return nb::none();
  job.out = out.data, std::copy_n(out.stride, 3, job.out_stride);
  bool sorted = true;
  {
    ReleasedGil release;
    const Isa isa = chosen_isa();
    if (to_caller && check) sorted = first_unsorted(job, isa) < 0; // before it writes to the caller's memory
    if (sorted) sorted = resample(job, isa, 0, check && !to_caller) < 0;
  }
  return sorted ? result : nb::none();
}

} // namespace

void bind_direct_resample(nb::module_ &m) {
  m.def("resample_arrays",
        [](nb::handle values, nb::handle times, nb::handle at, nb::handle out, bool check) {
          static const bool loaded = _import_array() >= 0; // at the first call: other users of this module need no numpy
          if (!loaded) throw nb::python_error();
          return run(NumpyArrays{}, values, times, at, out, check);
        },
        "values"_a.none(), "times"_a.none(), "at"_a.none(), "out"_a.none(), "check"_a,
        "Interpolate numpy arrays linearly, clamped at the ends: values [B, S, D] at times [B, S], read at `at` [B, T]. "
        "Returns [B, T, D], or None if the arguments need the general path.");
  m.def("resample_tensors",
        [](const TensorReader &reader, nb::handle values, nb::handle times, nb::handle at, nb::handle out, bool check) {
          if (!reader.accepts(values.ptr()) || TensorReader::requires_grad(values.ptr())) return nb::object(nb::none());
          return run(HostTensors{reader}, values, times, at, out, check);
        },
        "reader"_a, "values"_a.none(), "times"_a.none(), "at"_a.none(), "out"_a.none(), "check"_a,
        "As resample_arrays, for tensors in host memory.");
}

} // namespace ridgeline
