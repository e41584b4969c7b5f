// resample's front door: the everyday call goes straight from Python's arguments to the loops, everything else to the
// function behind it. After other work has swept the caches every line of code on the way is a trip to memory, so there
// is little of it: no interpreter, no buffer protocol, arrays as numpy keeps them.
#include <cstring>

#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include "bind.hpp"
#include "relaunch.hpp"
#include "resample.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

// By their names in `self`: the function behind the door, and who launches a GPU's calls again, by their kind.
constexpr const char *kBehind = "otherwise", *kAgain = "again";

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

// An array of numbers in this machine's own order, whose items lie a whole number of them apart; else not `ok`.
struct Array {
  Array(PyObject *object, int dimensions) : raw(reinterpret_cast<PyArrayObject *>(object)) {
    ok = PyArray_CheckExact(object) && PyArray_NDIM(raw) == dimensions && PyArray_ISALIGNED(raw) && PyArray_ISNOTSWAPPED(raw);
    for (int k = 0; ok && k < dimensions; ++k) ok = PyArray_STRIDE(raw, k) % PyArray_ITEMSIZE(raw) == 0;
  }
  int type() const { return PyArray_TYPE(raw); }
  std::int64_t size(int k) const { return PyArray_DIM(raw, k); }
  void strides(std::int64_t *to) const {
    for (int k = 0; k < PyArray_NDIM(raw); ++k) to[k] = PyArray_STRIDE(raw, k) / PyArray_ITEMSIZE(raw);
  }

  PyArrayObject *const raw;
  bool ok;
};

bool set_types(ResampleJob &job, int value, int time) {
  switch (value) {
  case NPY_HALF: job.value_type = ValueType::f16; break;
  case NPY_FLOAT: job.value_type = ValueType::f32; break;
  case NPY_DOUBLE: job.value_type = ValueType::f64; break;
  default: return false;
  }
  switch (time) {
  case NPY_FLOAT: job.time_type = TimeType::f32; return true;
  case NPY_DOUBLE: job.time_type = TimeType::f64; return true;
  case NPY_LONG: job.time_type = TimeType::i64; return sizeof(long) == 8;
  case NPY_LONGLONG: job.time_type = TimeType::i64; return true;
  default: return false;
  }
}

// Into the caller's own array: not a word unless all stamps are in order.
PyObject *into(PyObject *room, ResampleJob &job, int type, bool check) {
  const Array out(room, 3);
  if (!out.ok || out.type() != type || out.size(0) != job.batch || out.size(1) != job.targets ||
      out.size(2) != job.channels || !PyArray_ISWRITEABLE(out.raw))
    return nullptr;
  job.out = PyArray_DATA(out.raw), out.strides(job.out_stride);
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
PyObject *into_new(PyArray_Descr *type, ResampleJob &job, bool check) {
  nb::object room;
  PyThreadState *without_lock = nullptr;
  const std::int64_t disorder = resample(job, chosen(), 0, check, [&] {
    npy_intp shape[] = {npy_intp(job.batch), npy_intp(job.targets), npy_intp(job.channels)};
    Py_INCREF(type); // goes over to the array
    room = nb::steal(PyArray_Empty(3, shape, type, 0));
    if (!room.is_valid()) return PyErr_Clear(), false; // no memory: the ordinary way will say so
    const Array out(room.ptr(), 3);
    job.out = PyArray_DATA(out.raw), out.strides(job.out_stride);
    without_lock = PyEval_SaveThread();
    return true;
  });
  if (without_lock) PyEval_RestoreThread(without_lock);
  return disorder < 0 ? room.release().ptr() : nullptr;
}

// The answer; null, without an error, where the call is not the everyday one, its stamps are not in order, or its arrays
// do not fit: then nothing was written that anybody has seen.
PyObject *everyday(PyObject *const *args, const Said &said) {
  const Array values(args[0], 3), times(args[1], 2), at(args[2], 2);
  if (!values.ok || !times.ok || !at.ok || times.type() != at.type()) return nullptr;
  ResampleJob job{};
  job.batch = values.size(0), job.stamps = values.size(1), job.channels = values.size(2), job.targets = at.size(1);
  if (!set_types(job, values.type(), times.type()) || times.size(0) != job.batch || times.size(1) != job.stamps ||
      at.size(0) != job.batch)
    return nullptr;
  job.values = PyArray_DATA(values.raw), job.times = PyArray_DATA(times.raw), job.at = PyArray_DATA(at.raw);
  values.strides(job.value_stride), times.strides(job.time_stride), at.strides(job.at_stride);
  job.groups = {{0, job.channels, Kind::linear}};
  job.outside = Outside::clamp;
  return said.out ? into(said.out, job, values.type(), said.check) : into_new(PyArray_DESCR(values.raw), job, said.check);
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
      if (said.linear)
        if (PyObject *answer = everyday(args, said)) return answer;
      if (said.out && !said.check)
        if (PyObject *answer = launched(self, args, said); answer || PyErr_Occurred()) return answer;
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

void launch_again(nb::object door, nb::str kind, nb::handle_t<Relaunch> again) {
  if (!PyCFunction_Check(door.ptr()) ||
      PyCFunction_GetFunction(door.ptr()) != reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(enter)))
    throw nb::type_error("this is no door");
  nb::object self = nb::borrow(PyCFunction_GetSelf(door.ptr()));
  if (!nb::hasattr(self, kAgain)) self.attr(kAgain) = nb::dict();
  self.attr(kAgain)[kind] = again;
}

} // namespace

void bind_door(nb::module_ &m) {
  m.def("resample_door", door, "otherwise"_a, "text"_a,
        nb::sig("def resample_door(otherwise: typing.Any, text: str) -> typing.Any"),
        "A function that does ridgeline.resample's everyday call itself, numpy's arrays [B, S, D], [B, S] and [B, T], linear "
        "and held at the ends, and calls `otherwise` for all others; `text` is its signature and what it says of itself.");
  m.def("launch_again", launch_again, "door"_a, "kind"_a, "again"_a,
        "From now on `door` asks `again` when a call of this kind is plain otherwise, has an `out`, and skips the checks.");
}

} // namespace ridgeline
