// Python face of launch: every call is a list of addresses, and nothing else is looked at.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "launch.hpp"
#include "relaunch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {

namespace {

void point(Launch &launch, const nb::args &addresses) {
  std::size_t k = 0;
  for (nb::handle address : addresses) {
    if (!address.is_none()) {
      const std::uint64_t to = PyLong_AsUnsignedLongLong(address.ptr());
      if (PyErr_Occurred()) throw nb::python_error();
      launch.point(k, to);
    }
    ++k;
  }
}

} // namespace

void bind_launch(nb::module_ &m) {
  nb::class_<Launch>(m, "Launch", "A compiled GPU kernel with its parameters ready; called with a stream and addresses.")
      .def("__init__",
           [](Launch *self, std::uint64_t function, unsigned programs, unsigned threads, unsigned shared,
              const std::vector<std::tuple<int, int, std::int64_t>> &parameters, const std::string &library, bool early) {
             std::vector<Parameter> all;
             for (const auto &[bytes, pointer, value] : parameters) all.push_back({bytes, pointer, value});
             new (self) Launch(function, programs, threads, shared, all, library, early);
           },
           "function"_a, "programs"_a, "threads"_a, "shared"_a, "parameters"_a, "library"_a = "libcuda.so.1",
           "early"_a = false,
           "`parameters` in the kernel's order: (bytes, which address of a call or -1, value if -1). early: it may begin "
           "before the kernel ahead has ended, and waits for it by itself.")
      .def("__call__",
           [](Launch &self, std::uint64_t stream, nb::args addresses) {
             point(self, addresses);
             self(stream);
           },
           nb::sig("def __call__(self, stream: int, *addresses: int | None) -> None"), "Launch; None leaves an address as it was.");
  m.def("launch_in_turn",
        [](const std::vector<Launch *> &launches, std::uint64_t stream, nb::args addresses) {
          for (Launch *launch : launches) {
            point(*launch, addresses);
            (*launch)(stream);
          }
        },
        nb::sig("def launch_in_turn(launches: list[Launch], stream: int, *addresses: int | None) -> None"),
        "Each of them with the same addresses.");

  nb::class_<Tensors>(m, "Tensors", "How tensors of one type are looked at without the interpreter: DLPack's exchange API.")
      .def("__init__",
           [](Tensors *self, nb::type_object type) {
             const nb::object capsule = nb::getattr(type, Exchange::kAttribute, nb::none());
             const void *table = PyCapsule_IsValid(capsule.ptr(), Exchange::kCapsule)
                                     ? PyCapsule_GetPointer(capsule.ptr(), Exchange::kCapsule)
                                     : nullptr;
             new (self) Tensors(reinterpret_cast<PyTypeObject *>(type.ptr()), table);
             type.inc_ref(); // for good, as its table
           },
           "type"_a, "Of this very type; RuntimeError if it offers none.");

  using Tensor = nb::handle;
  const auto four = [](Tensor a, Tensor b, Tensor c, Tensor d) {
    return Relaunch::Objects{a.ptr(), b.ptr(), c.ptr(), d.ptr()};
  };
  nb::class_<Relaunch>(m, "Relaunch",
                       "Launches for calls of four tensors, found again by where these are, their types, shapes, strides and "
                       "alignment, without the interpreter.")
      .def(nb::init<const Tensors &>(), "tensors"_a)
      .def("remember",
           [four](Relaunch &self, Tensor a, Tensor b, Tensor c, Tensor d, std::shared_ptr<Launch> launch) {
             return self.remember(four(a, b, c, d), std::move(launch));
           },
           "a"_a, "b"_a, "c"_a, "d"_a, "launch"_a,
           "Such a call may be launched by this from now on; False if it is none that can be told from others.")
      .def("__call__", [four](Relaunch &self, Tensor a, Tensor b, Tensor c, Tensor d) { return self.again(four(a, b, c, d)); },
           "a"_a, "b"_a, "c"_a, "d"_a,
           "Whether it was launched, on the current stream: the call is a known one, `a` wants no gradient, and the launch's "
           "context is current.")
      .def("forget", &Relaunch::forget, "All of them.")
      .def("__len__", &Relaunch::size);
}

} // namespace ridgeline
