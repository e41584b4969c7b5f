// The rules of whose threads are asked, to be tried in a world whose clock and threads are made up.
#include <nanobind/nanobind.h>

#include "bind.hpp"
#include "habit.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {

static std::chrono::nanoseconds duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}
static Habit::Time moment(double seconds) { return Habit::Time(duration(seconds)); }

void bind_habit(nb::module_ &m) {
  nb::class_<Habit>(m, "Habit", "Whose threads a caller of resample asks for help, by how its calls went. All times in seconds.")
      .def(nb::init<>())
      .def("look_around", [](Habit &habit, double now, int wanted, nb::callable running, nb::callable used) {
        const auto count = [&](std::chrono::microseconds glance) { return nb::cast<int>(running(1e-6 * double(glance.count()))); };
        habit.look_around(moment(now), wanted, count, [&] { return nb::cast<double>(used()); });
        return habit.elsewhere(moment(now));
      }, "now"_a, "wanted"_a, "running"_a, "used"_a,
           "Whether this call of `wanted` threads asks those of another library. `running(glance)`: how many other threads "
           "are busy that long, `used()`: the CPU time of all of them.")
      .def("after_lent", [](Habit &habit, double now, double worked, double waited, bool missed, int threads) {
        habit.after_lent(moment(now), {duration(worked), duration(waited), missed}, threads);
      }, "now"_a, "worked"_a, "waited"_a, "missed"_a, "threads"_a,
           "A call on their threads: how long the caller worked and then waited, and whether nobody came.")
      .def("after_own", [](Habit &habit, double now, double worked, double waited, bool missed, int threads) {
        habit.after_own(moment(now), {duration(worked), duration(waited), missed}, threads);
      }, "now"_a, "worked"_a, "waited"_a, "missed"_a, "threads"_a, "The same of a call on our own.")
      .def("after_alone", [](Habit &habit, double now, double took, int threads) {
        habit.after_alone(moment(now), duration(took), threads);
      }, "now"_a, "took"_a, "threads"_a, "A call that the caller did by itself.")
      .def("alone", [](const Habit &habit, double now) { return habit.alone(moment(now)); }, "now"_a,
           "Whether the caller works without company, as it was kept waiting for long.");
}

} // namespace ridgeline
