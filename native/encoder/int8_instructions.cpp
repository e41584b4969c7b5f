#include "encoder/int8_instructions.hpp"

#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ridgeline {
namespace {

#if defined(__x86_64__)
struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  explicit Leaf(unsigned part) { __get_cpuid_count(7, part, &eax, &ebx, &ecx, &edx); }
};

bool has_avx_vnni() { return Leaf(1).eax >> 4 & 1; }

// Tiles need the instructions, an operating system that saves them, and, on Linux, a permission for this process.
bool has_amx() {
#if defined(__linux__)
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25, kSavesState = 1u << 27;
  constexpr std::uint64_t kTileState = 3u << 17; // in XCR0
  if ((Leaf(0).edx & (kTile | kInt8)) != (kTile | kInt8)) return false;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kSavesState)) return false;
  asm("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  if ((eax & kTileState) != kTileState) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

} // namespace

const char *name(Int8Instructions instructions) {
  switch (instructions) {
  case Int8Instructions::sdot: return "sdot";
  case Int8Instructions::avx_vnni: return "avx-vnni";
  case Int8Instructions::vnni: return "vnni";
  case Int8Instructions::amx: return "amx";
  default: return "plain";
  }
}

std::vector<Int8Instructions> supported_int8(Isa isa) {
  std::vector<Int8Instructions> all{Int8Instructions::plain};
#if defined(__x86_64__)
  static const bool avx_vnni = has_avx_vnni(), amx = has_amx(), vnni = (__builtin_cpu_init(), __builtin_cpu_supports("avx512vnni"));
  if (isa == Isa::avx2 && avx_vnni) all.push_back(Int8Instructions::avx_vnni);
  if (isa != Isa::baseline && vnni && supported_isas().back() == Isa::avx512) all.push_back(Int8Instructions::vnni);
  if (isa == Isa::avx512 && amx) all.push_back(Int8Instructions::amx);
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20; // HWCAP_ASIMDDP
  if (isa == Isa::baseline && (getauxval(AT_HWCAP) & kDotProduct)) all.push_back(Int8Instructions::sdot);
#else
  (void)isa;
#endif
  return all;
}

Int8Instructions parse_int8(const std::string &word, Isa isa) {
  const std::vector<Int8Instructions> all = supported_int8(isa);
  const char *forced = isa == chosen_isa() ? std::getenv("RIDGELINE_INT8") : nullptr;
  const std::string requested = word.empty() && forced ? forced : word;
  if (requested.empty()) return all.back();
  std::string names;
  for (const Int8Instructions one : all) {
    if (requested == name(one)) return one;
    names += names.empty() ? name(one) : std::string(", ") + name(one);
  }
  throw std::invalid_argument("int8 instructions '" + requested + "' are not on this CPU; there are: " + names);
}

} // namespace ridgeline
