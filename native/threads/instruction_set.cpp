#include "threads/instruction_set.hpp"

#include <cstdlib>
#include <stdexcept>

namespace ridgeline {

const char *name(Isa isa) {
  switch (isa) {
  case Isa::avx2: return "avx2";
  case Isa::avx512: return "avx512";
  default: return "baseline";
  }
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> sets{Isa::baseline};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    sets.push_back(Isa::avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      sets.push_back(Isa::avx512);
  }
#endif
  return sets;
}

Isa chosen_isa() {
  static const Isa isa = [] {
    const char *forced = std::getenv("RIDGELINE_ISA");
    return forced && *forced ? parse_isa(forced) : supported_isas().back();
  }();
  return isa;
}

Isa parse_isa(const std::string &word) {
  if (word.empty()) return chosen_isa();
  std::string names;
  for (Isa isa : supported_isas()) {
    if (word == name(isa)) return isa;
    names += names.empty() ? name(isa) : std::string(", ") + name(isa);
  }
  throw std::invalid_argument("instruction set '" + word + "' is not on this CPU; there are: " + names);
}

} // namespace ridgeline
