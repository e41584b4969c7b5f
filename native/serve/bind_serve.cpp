// What the HTTP server computes for every answer.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>

#include "bind.hpp"
#include "serve/base64.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// The text of each row, between `before` and `after`: what separates the rows of an answer costs no pass of its own.
nb::list encode_rows(Rows rows, nb::bytes before, nb::bytes after) {
  const std::size_t count = rows.shape(0), size = rows.shape(1) * sizeof(float);
  const std::size_t length = before.size() + base64_length(size) + after.size();
  nb::list texts;
  for (std::size_t k = 0; k < count; ++k) {
    PyObject *text = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(length));
    if (text == nullptr) throw nb::python_error();
    char *out = PyBytes_AS_STRING(text);
    std::memcpy(out, before.c_str(), before.size());
    encode_base64(reinterpret_cast<const std::uint8_t *>(rows.data()) + k * size, size, out + before.size());
    std::memcpy(out + length - after.size(), after.c_str(), after.size());
    texts.append(nb::steal<nb::bytes>(text));
  }
  return texts;
}

} // namespace

void bind_serve(nb::module_ &m) {
  m.def("encode_base64", encode_rows, "rows"_a.noconvert(), "before"_a = nb::bytes("", 0), "after"_a = nb::bytes("", 0),
        "Returns the base64 of the bytes of each row, between two other texts.");
}

} // namespace ridgeline
