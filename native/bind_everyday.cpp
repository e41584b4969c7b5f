// The everyday call's own door: three arrays and where the answer goes, through the buffer protocol. After other work
// has swept the caches every line of code on the way is a trip to memory, and bind_resample.cpp's way is long.
#include <nanobind/nanobind.h>

#include "bind.hpp"
#include "resample.hpp"
#include "team.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

// An array of numbers as it lies in memory; not `ok` if it has other dimensions or lies askew.
struct View {
  View(nb::handle array, int dimensions, int flags) {
    held = PyObject_GetBuffer(array.ptr(), &raw, flags | PyBUF_STRIDES | PyBUF_FORMAT) == 0;
    if (!held) PyErr_Clear();
    ok = held && raw.ndim == dimensions && raw.format && raw.format[0] && !raw.format[1];
    for (int k = 0; ok && k < dimensions; ++k) ok = raw.strides[k] % raw.itemsize == 0;
  }
  View(const View &) = delete;
  ~View() {
    if (held) PyBuffer_Release(&raw);
  }
  char type() const { return raw.format[0]; }
  std::int64_t size(int k) const { return raw.shape[k]; }
  std::int64_t stride(int k) const { return raw.strides[k] / raw.itemsize; }

  Py_buffer raw{};
  bool held, ok;
};

bool set_types(ResampleJob &job, char value, char time, std::size_t time_size) {
  switch (value) {
  case 'e': job.value_type = ValueType::f16; break;
  case 'f': job.value_type = ValueType::f32; break;
  case 'd': job.value_type = ValueType::f64; break;
  default: return false;
  }
  switch (time) {
  case 'f': job.time_type = TimeType::f32; return true;
  case 'd': job.time_type = TimeType::f64; return true;
  case 'l':
  case 'q': job.time_type = TimeType::i64; return time_size == 8;
  default: return false;
  }
}

// `beforehand`: nothing is written unless all stamps are in order.
bool into(nb::handle values, nb::handle times, nb::handle at, nb::handle out, bool check, bool beforehand) {
  const View v(values, 3, 0), s(times, 2, 0), t(at, 2, 0), o(out, 3, PyBUF_WRITABLE);
  if (!v.ok || !s.ok || !t.ok || !o.ok || t.type() != s.type() || o.type() != v.type()) return false;
  ResampleJob job{};
  job.batch = o.size(0), job.targets = o.size(1), job.channels = o.size(2), job.stamps = v.size(1);
  if (!set_types(job, v.type(), s.type(), s.raw.itemsize) || v.size(0) != job.batch || v.size(2) != job.channels ||
      s.size(0) != job.batch || s.size(1) != job.stamps || t.size(0) != job.batch || t.size(1) != job.targets)
    return false;
  job.values = v.raw.buf, job.times = s.raw.buf, job.at = t.raw.buf, job.out = o.raw.buf;
  for (int k = 0; k < 3; ++k) job.value_stride[k] = v.stride(k), job.out_stride[k] = o.stride(k);
  for (int k = 0; k < 2; ++k) job.time_stride[k] = s.stride(k), job.at_stride[k] = t.stride(k);
  job.groups = {{0, job.channels, Kind::linear}};
  job.outside = Outside::clamp;
  const Isa isa = chosen();
  nb::gil_scoped_release free;
  if (check && beforehand && first_disorder(job, isa) >= 0) return false;
  return resample(job, isa, 0, check && !beforehand) < 0;
}

bool everyday(nb::handle values, nb::handle times, nb::handle at, nb::handle out, bool check) {
  return into(values, times, at, out, check, true);
}

// The same into an array of its own. The way there is long when caches are cold: who will help is woken first.
nb::object fresh(nb::handle values, nb::handle times, nb::handle at, bool check, nb::handle empty) {
  std::int64_t batch, targets, channels;
  {
    const View v(values, 3, 0), t(at, 2, 0);
    if (!v.ok || !t.ok) return nb::none();
    if (v.size(0) > 1 && v.raw.len >= 2 * kBytesPerThread) rouse(3);
    batch = v.size(0), targets = t.size(1), channels = v.size(2);
  }
  nb::object out = empty(nb::make_tuple(batch, targets, channels), values.attr("dtype"));
  return into(values, times, at, out, check, false) ? out : nb::none();
}

} // namespace

void bind_everyday(nb::module_ &m) {
  m.def("resample_everyday", everyday, "values"_a, "times"_a, "at"_a, "out"_a, "check"_a,
        "values [B, S, D] at times [B, S], read off at [B, T], into out [B, T, D], linear and held at the ends; False if "
        "they are not that, or the stamps not in order, and then nothing was written: `resample` says what is wrong.");
  m.def("resample_fresh", fresh, "values"_a, "times"_a, "at"_a, "check"_a, "empty"_a,
        "resample_everyday into an array that `empty`, numpy's, makes: that array, or None.");
}

} // namespace ridgeline
