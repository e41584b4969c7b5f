#include "isa.hpp"

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

std::vector<Isa> supported() {
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

Isa chosen() {
  static const Isa isa = [] {
    const char *forced = std::getenv("RIDGELINE_ISA");
    return forced && *forced ? parse(forced) : supported().back();
  }();
  return isa;
}

Isa parse(const std::string &word) {
  if (word.empty()) return chosen();
  std::string there;
  for (Isa isa : supported()) {
    if (word == name(isa)) return isa;
    there += there.empty() ? name(isa) : std::string(", ") + name(isa);
  }
  throw std::invalid_argument("instruction set '" + word + "' is not on this CPU; there are: " + there);
}

} // namespace ridgeline
