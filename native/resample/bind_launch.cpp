// Python classes for launches: Launch, TensorReader and LaunchCache.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "resample/launch.hpp"
#include "resample/launch_cache.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

void set_addresses(Launch &launch, const nb::args &addresses) {
  std::size_t k = 0;
  for (nb::handle item : addresses) {
    if (!item.is_none()) {
      const std::uint64_t address = PyLong_AsUnsignedLongLong(item.ptr());
      if (PyErr_Occurred()) throw nb::python_error();
      launch.set_address(k, address);
    }
    ++k;
  }
}

} // namespace

void bind_launch(nb::module_ &m) {
  nb::class_<Launch>(m, "Launch", "A compiled GPU kernel with its parameters prepared; call it with a stream and addresses.")
      .def("__init__",
           [](Launch *self, std::uint64_t function, unsigned programs, unsigned threads, unsigned shared,
              const std::vector<std::tuple<int, int, std::int64_t>> &parameters, const std::string &library, bool early) {
             std::vector<Parameter> all;
             for (const auto &[bytes, address, value] : parameters) all.push_back({bytes, address, value});
             new (self) Launch(function, programs, threads, shared, all, library, early);
           },
           "function"_a, "programs"_a, "threads"_a, "shared"_a, "parameters"_a, "library"_a = "libcuda.so.1",
           "early"_a = false,
           "`parameters` in the kernel's order: (bytes, index of the address or -1, value if -1). early: the kernel may "
           "start before the previous kernel has ended, and waits for it by itself.")
      .def("__call__",
           [](Launch &self, std::uint64_t stream, nb::args addresses) {
             set_addresses(self, addresses);
             self(stream);
           },
           nb::sig("def __call__(self, stream: int, *addresses: int | None) -> None"),
           "Launch the kernel; None keeps the address of the last call.");
  m.def("launch_all",
        [](const std::vector<Launch *> &launches, std::uint64_t stream, nb::args addresses) {
          for (Launch *launch : launches) {
            set_addresses(*launch, addresses);
            (*launch)(stream);
          }
        },
        nb::sig("def launch_all(launches: list[Launch], stream: int, *addresses: int | None) -> None"),
        "Launch all of them in order, with the same addresses.");

  nb::class_<TensorReader>(m, "TensorReader", "Reads tensors of one type without Python, by DLPack's exchange API.")
      .def("__init__",
           [](TensorReader *self, nb::type_object type) {
             const nb::object capsule = nb::getattr(type, ExchangeTable::kAttribute, nb::none());
             const void *table = PyCapsule_IsValid(capsule.ptr(), ExchangeTable::kCapsule)
                                     ? PyCapsule_GetPointer(capsule.ptr(), ExchangeTable::kCapsule)
                                     : nullptr;
             new (self) TensorReader(reinterpret_cast<PyTypeObject *>(type.ptr()), table);
             type.inc_ref(); // it must live as long as its table
           },
           "type"_a, "For tensors of exactly this type; RuntimeError if the type does not offer the API.");

  using Object = nb::handle;
  const auto four = [](Object a, Object b, Object c, Object d) {
    return LaunchCache::Objects{a.ptr(), b.ptr(), c.ptr(), d.ptr()};
  };
  nb::class_<LaunchCache>(m, "LaunchCache",
                          "Launches for calls with four tensors, looked up by device, types, shapes, strides and alignment.")
      .def(nb::init<const TensorReader &>(), "reader"_a)
      .def("add",
           [four](LaunchCache &self, Object a, Object b, Object c, Object d, std::shared_ptr<Launch> launch) {
             return self.add(four(a, b, c, d), std::move(launch));
           },
           "a"_a, "b"_a, "c"_a, "d"_a, "launch"_a,
           "Use `launch` for later calls with such tensors; False if the tensors cannot be read.")
      .def("__call__",
           [four](LaunchCache &self, Object a, Object b, Object c, Object d) { return self.launch(four(a, b, c, d)); },
           "a"_a, "b"_a, "c"_a, "d"_a,
           "Launch on the current stream, if such a call was added, `a` requires no gradient, `d` overlaps no other tensor "
           "and the context of the launch is current; returns whether it did.")
      .def("clear", &LaunchCache::clear, "Remove all launches.")
      .def("__len__", &LaunchCache::size);
}

} // namespace ridgeline
