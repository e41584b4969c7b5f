// What the watcher does with every event before it is encoded: OTLP to Python values, and a first look for secrets.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "audit/otlp.hpp"
#include "audit/word_search.hpp"
#include "bind.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

PyType_Slot word_search_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(WordSearch::traverse)}, {Py_tp_clear, reinterpret_cast<void *>(WordSearch::clear)}, {0, nullptr}};

} // namespace

void bind_audit(nb::module_ &m) {
  m.def("parse_otlp_logs", parse_otlp_logs, "body"_a, "most"_a,
        "An ExportLogsServiceRequest (protobuf) as a list of (attributes of the resource, name of the scope, records). A record is "
        "(time, observed time, severity number, severity text, body, attributes, dropped attributes, trace id, span id, event "
        "name). Stops after more than `most` records. ValueError says what is wrong.");
  nb::class_<WordSearch>(m, "WordSearch", nb::type_slots(word_search_slots), "Finds words in the texts of events, in one pass.")
      .def(nb::init<const std::vector<std::tuple<std::string, std::uint32_t, bool>> &, std::vector<std::uint32_t>, nb::callable>(),
           "words"_a, "combinations"_a, "hides"_a,
           "Each word has a bit, and may have to be in the same case; an event matches if it has all bits of one of the "
           "combinations, or a name for which `hides` returns True.")
      .def("matches", &WordSearch::matches, "event"_a,
           "Whether an event may match: True too if it has values that are not plain, or texts that are no UTF-8.");
}

} // namespace ridgeline
