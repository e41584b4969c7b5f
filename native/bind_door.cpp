// resample's front door: the everyday call goes straight from Python's arguments to the loops, everything else to the
// function behind it. After other work has swept the caches every line of code on the way is a trip to memory, so there
// is little of it: no interpreter, no buffer protocol, arrays as numpy keeps them and tensors as DLPack has them.
#include <algorithm>
#include <cstring>

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include "bind.hpp"
#include "extent.hpp"
#include "relaunch.hpp"
#include "resample.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

// By their names in `self`: the function behind the door, the tensors it knows, and who launches a GPU's calls again, by
// their kind.
constexpr const char *kBehind = "otherwise", *kTensors = "tensors", *kAgain = "again";

// What was said by name: `out`, `check` and `kind`, and of the rest, if it is plain, nothing but what would have held anyway.
struct Said {
  PyObject *out = nullptr, *kind = nullptr;
  bool check = true, linear = true, plain = true;

  void hear(PyObject *name, PyObject *value) {
    const auto is = [&](const char *word) { return PyUnicode_CompareWithASCIIString(name, word) == 0; };
    const auto means = [&](const char *word) {
      return PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, word) == 0;
    };
    if (is("out")) out = value == Py_None ? nullptr : value;
    else if (is("check")) plain &= value == Py_True || value == Py_False, check = value == Py_True;
    else if (is("kind")) plain &= bool(PyUnicode_CheckExact(value)), linear = means("linear"), kind = value;
    else if (is("outside")) plain &= means("clamp");
    else if (is("quaternion")) plain &= means("xyzw");
    else if (is("sort") || is("return_mask")) plain &= value == Py_False;
    else plain &= value == Py_None && (is("max_gap") || is("lengths") || is("at_lengths") || is("offsets") ||
                                       is("normalize") || is("dtype"));
  }
};

// What the loops want to know of an array. Not `ok`: it is none for them.
struct View {
  bool ok = false, writable = true;
  int value = -1, time = -1; // as a ValueType and a TimeType; -1: it is neither
  void *data = nullptr;
  std::int64_t item = 0, size[3], stride[3]; // bytes; in items

  Extent extent(int dimensions) const {
    return {reinterpret_cast<std::uint64_t>(data), size, stride, dimensions, item};
  }
};

struct Numpy {
  // Numbers in this machine's own order, a whole number of them apart.
  View view(PyObject *object, int dimensions) const {
    View v;
    auto *array = reinterpret_cast<PyArrayObject *>(object);
    if (!PyArray_CheckExact(object) || PyArray_NDIM(array) != dimensions || !PyArray_ISALIGNED(array) ||
        !PyArray_ISNOTSWAPPED(array))
      return v;
    switch (PyArray_TYPE(array)) {
    case NPY_HALF: v.value = int(ValueType::f16); break;
    case NPY_FLOAT: v.value = int(ValueType::f32), v.time = int(TimeType::f32); break;
    case NPY_DOUBLE: v.value = int(ValueType::f64), v.time = int(TimeType::f64); break;
    case NPY_LONG: v.time = sizeof(long) == 8 ? int(TimeType::i64) : -1; break;
    case NPY_LONGLONG: v.time = int(TimeType::i64); break;
    default: return v; // whose items may have no size at all
    }
    for (int k = 0; k < dimensions; ++k) {
      v.size[k] = PyArray_DIM(array, k), v.stride[k] = PyArray_STRIDE(array, k) / PyArray_ITEMSIZE(array);
      if (v.stride[k] * PyArray_ITEMSIZE(array) != PyArray_STRIDE(array, k)) return v;
    }
    v.ok = true, v.writable = PyArray_ISWRITEABLE(array), v.data = PyArray_DATA(array), v.item = PyArray_ITEMSIZE(array);
    return v;
  }
  PyObject *empty(PyObject *like, const ResampleJob &job) const {
    npy_intp shape[] = {npy_intp(job.batch), npy_intp(job.targets), npy_intp(job.channels)};
    PyArray_Descr *type = PyArray_DESCR(reinterpret_cast<PyArrayObject *>(like));
    Py_INCREF(type); // goes over to the array
    return PyArray_Empty(3, shape, type, 0);
  }
};

struct InTensors { // in this machine's memory
  const Tensors &tensors;

  View view(PyObject *object, int dimensions) const {
    static constexpr int kHost = 1, kInteger = 0, kFloat = 2, kBfloat = 4; // as DLPack counts them
    View v;
    Tensor t;
    if (!tensors.look(object, t) || t.device_type != kHost || t.dimensions != dimensions || t.lanes != 1) return v;
    switch (t.code << 8 | t.bits) {
    case kFloat << 8 | 16: v.value = int(ValueType::f16); break;
    case kBfloat << 8 | 16: v.value = int(ValueType::bf16); break;
    case kFloat << 8 | 32: v.value = int(ValueType::f32), v.time = int(TimeType::f32); break;
    case kFloat << 8 | 64: v.value = int(ValueType::f64), v.time = int(TimeType::f64); break;
    case kInteger << 8 | 64: v.time = int(TimeType::i64); break;
    }
    for (int k = 0; k < dimensions; ++k) v.size[k] = t.shape[k], v.stride[k] = t.strides[k];
    v.ok = true, v.data = reinterpret_cast<void *>(t.address()), v.item = t.bits / 8;
    return v;
  }
  PyObject *empty(PyObject *like, const ResampleJob &job) const {
    static PyObject *const name = PyUnicode_InternFromString("new_empty");
    const nb::object shape = nb::steal(Py_BuildValue(
        "(LLL)", static_cast<long long>(job.batch), static_cast<long long>(job.targets), static_cast<long long>(job.channels)));
    return shape.is_valid() ? PyObject_CallMethodOneArg(like, name, shape.ptr()) : nullptr;
  }
};

// Into the caller's own array: not a word unless all stamps are in order, and nothing where it might be read.
template <class Library>
PyObject *into(const Library &library, PyObject *room, ResampleJob &job, bool check, const Extent (&inputs)[3]) {
  const View out = library.view(room, 3);
  if (!out.ok || !out.writable || out.value != int(job.value_type) || out.size[0] != job.batch ||
      out.size[1] != job.targets || out.size[2] != job.channels || folded(out.size, out.stride, 3))
    return nullptr;
  for (const Extent &input : inputs)
    if (!input.apart(out.extent(3))) return nullptr;
  job.out = out.data, std::copy_n(out.stride, 3, job.out_stride);
  nb::object held = nb::borrow(room);
  bool fits = true;
  {
    nb::gil_scoped_release free;
    const Isa isa = chosen();
    resample(job, isa, 0, false, [&] { return fits = !check || first_disorder(job, isa) < 0; });
  }
  return fits ? held.release().ptr() : nullptr;
}

// Into an array of its own. The way to its memory is long when caches are cold: those who help come meanwhile.
template <class Library> PyObject *into_new(const Library &library, PyObject *like, ResampleJob &job, bool check) {
  nb::object room;
  PyThreadState *without_lock = nullptr;
  const std::int64_t disorder = resample(job, chosen(), 0, check, [&] {
    room = nb::steal(library.empty(like, job));
    if (!room.is_valid()) return PyErr_Clear(), false; // no memory: the ordinary way will say so
    const View out = library.view(room.ptr(), 3);
    if (!out.ok) return false;
    job.out = out.data, std::copy_n(out.stride, 3, job.out_stride);
    without_lock = PyEval_SaveThread();
    return true;
  });
  if (without_lock) PyEval_RestoreThread(without_lock);
  return without_lock && disorder < 0 ? room.release().ptr() : nullptr;
}

// The answer; null, without an error, where the call is not the everyday one, its stamps are not in order, or its arrays
// do not fit: then nothing was written that anybody has seen.
template <class Library> PyObject *everyday(const Library &library, PyObject *const *args, const Said &said) {
  const View values = library.view(args[0], 3);
  if (!values.ok || values.value < 0) return nullptr;
  const View times = library.view(args[1], 2), at = library.view(args[2], 2);
  ResampleJob job{};
  job.batch = values.size[0], job.stamps = values.size[1], job.channels = values.size[2];
  if (!times.ok || !at.ok || times.time < 0 || times.time != at.time || times.size[0] != job.batch ||
      times.size[1] != job.stamps || at.size[0] != job.batch)
    return nullptr;
  job.targets = at.size[1];
  job.value_type = ValueType(values.value), job.time_type = TimeType(times.time);
  job.values = values.data, job.times = times.data, job.at = at.data;
  std::copy_n(values.stride, 3, job.value_stride);
  std::copy_n(times.stride, 2, job.time_stride), std::copy_n(at.stride, 2, job.at_stride);
  job.groups = {{0, job.channels, Kind::linear}};
  job.outside = Outside::clamp;
  if (!said.out) return into_new(library, args[0], job, said.check);
  return into(library, said.out, job, said.check, {values.extent(3), times.extent(2), at.extent(2)});
}

// The same for tensors, once a type of them is known.
PyObject *everyday_of_tensors(PyObject *self, PyObject *const *args, const Said &said) {
  static PyObject *const name = PyUnicode_InternFromString(kTensors);
  PyObject *known = PyDict_GetItemWithError(PyModule_GetDict(self), name); // borrowed
  if (!known) return nullptr;
  const InTensors library{*nb::inst_ptr<Tensors>(known)};
  if (!library.tensors.has(args[0]) || Tensors::takes_gradient(args[0])) return nullptr;
  return everyday(library, args, said);
}

// Of four tensors on a GPU nothing is looked at but whether such a call came before. Null: it did not, or Python has an
// error.
PyObject *launched(PyObject *self, PyObject *const *args, const Said &said) {
  static PyObject *const name = PyUnicode_InternFromString(kAgain), *const linear = PyUnicode_InternFromString("linear");
  PyObject *kinds = PyDict_GetItemWithError(PyModule_GetDict(self), name); // borrowed, as what is in it
  PyObject *again = kinds ? PyDict_GetItemWithError(kinds, said.linear ? linear : said.kind) : nullptr;
  if (!again) return nullptr;
  try {
    if (!nb::inst_ptr<Relaunch>(again)->again({args[0], args[1], args[2], said.out})) return nullptr;
  } catch (const std::exception &error) {
    return PyErr_SetString(PyExc_RuntimeError, error.what()), nullptr;
  }
  return Py_NewRef(said.out);
}

PyObject *enter(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  if (count == 3) {
    Said said;
    for (Py_ssize_t k = 0; names && k < PyTuple_GET_SIZE(names); ++k) said.hear(PyTuple_GET_ITEM(names, k), args[3 + k]);
    if (said.plain) {
      PyObject *answer = said.linear ? everyday(Numpy{}, args, said) : nullptr;
      if (!answer && said.out && !said.check) answer = launched(self, args, said);
      if (!answer && said.linear && !PyErr_Occurred()) answer = everyday_of_tensors(self, args, said);
      if (answer || PyErr_Occurred()) return answer;
    }
  }
  PyObject *behind = PyDict_GetItemString(PyModule_GetDict(self), kBehind); // borrowed
  return PyObject_Vectorcall(behind, args, std::size_t(count), names);
}

nb::object door(nb::callable otherwise, const char *text) {
  static const bool ready = _import_array() >= 0;
  if (!ready) throw nb::python_error();
  const nb::object name = otherwise.attr("__name__"), home = otherwise.attr("__module__");
  // A built-in function that is found by its module and name when it is pickled; it lives as long as the process.
  nb::object self = nb::steal(PyModule_NewObject(home.ptr()));
  self.attr(kBehind) = otherwise;
  auto *method = new PyMethodDef{strdup(PyUnicode_AsUTF8(name.ptr())),
                                 reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(enter)),
                                 METH_FASTCALL | METH_KEYWORDS, strdup(text)};
  return nb::steal(PyCFunction_NewEx(method, self.ptr(), home.ptr()));
}

nb::object self_of(nb::handle door) {
  if (!PyCFunction_Check(door.ptr()) ||
      PyCFunction_GetFunction(door.ptr()) != reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(enter)))
    throw nb::type_error("this is no door");
  return nb::borrow(PyCFunction_GetSelf(door.ptr()));
}

void take_tensors(nb::object door, nb::handle_t<Tensors> tensors) { self_of(door).attr(kTensors) = tensors; }

void launch_again(nb::object door, nb::str kind, nb::handle_t<Relaunch> again) {
  nb::object self = self_of(door);
  if (!nb::hasattr(self, kAgain)) self.attr(kAgain) = nb::dict();
  self.attr(kAgain)[kind] = again;
}

} // namespace

void bind_door(nb::module_ &m) {
  m.def("resample_door", door, "otherwise"_a, "text"_a,
        nb::sig("def resample_door(otherwise: typing.Any, text: str) -> typing.Any"),
        "A function that does ridgeline.resample's everyday call itself, numpy's arrays [B, S, D], [B, S] and [B, T], linear "
        "and held at the ends, and calls `otherwise` for all others; `text` is its signature and what it says of itself.");
  m.def("take_tensors", take_tensors, "door"_a, "tensors"_a,
        "From now on `door` does the everyday call of these, too, where they lie in this machine's memory.");
  m.def("launch_again", launch_again, "door"_a, "kind"_a, "again"_a,
        "From now on `door` asks `again` when a call of this kind is plain otherwise, has an `out`, and skips the checks.");
}

} // namespace ridgeline
