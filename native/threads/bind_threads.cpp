// Python functions of threads/: instruction sets and the busy loop.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "released_gil.hpp"
#include "threads/instruction_set.hpp"
#include "threads/spin_loop.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {

void bind_threads(nb::module_ &m) {
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (Isa isa : supported_isas()) names.emplace_back(name(isa));
    return names;
  }, "Instruction sets that this build contains and this CPU can run, weakest first.");
  m.def("chosen_instruction_set", [] { return std::string(name(chosen_isa())); },
        "The instruction set in use: the strongest one, or the one that RIDGELINE_ISA names.");
  m.def("spin", [](std::uint64_t steps, std::uint64_t seed) {
    ReleasedGil release;
    return spin(steps, seed);
  }, "steps"_a, "seed"_a = 1, "Run a busy loop of `steps` dependent steps and return its known result.");
}

} // namespace ridgeline
