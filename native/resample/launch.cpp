#include "resample/launch.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <dlfcn.h>

namespace ridgeline {
namespace {

constexpr std::size_t kMostExtra = 4; // pointers that a compiler may add
constexpr int kInvalidContext = 201;  // CUDA_ERROR_INVALID_CONTEXT
constexpr int kSerialization = 6;     // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

// The layouts of the driver.
struct Attribute {
  int id;
  char pad[4];
  int value;
  char rest[60];
};
struct Config {
  unsigned grid[3], block[3], shared;
  void *stream;
  Attribute *attributes;
  unsigned attribute_count;
};

template <class F> F load_symbol(void *library, const char *name) {
  if (void *symbol = dlsym(library, name)) return reinterpret_cast<F>(symbol);
  throw std::runtime_error(std::string("the CUDA driver has no ") + name);
}

} // namespace

Launch::Launch(std::uint64_t function, unsigned programs, unsigned threads, unsigned shared,
               const std::vector<Parameter> &parameters, const std::string &library, bool early)
    : function(reinterpret_cast<void *>(function)), programs(programs), threads(threads), shared(shared), early(early) {
  void *driver = dlopen(library.c_str(), RTLD_NOW);
  if (!driver) throw std::runtime_error("there is no CUDA driver here: " + std::string(dlerror()));
  launch = load_symbol<decltype(launch)>(driver, "cuLaunchKernel");
  if (early) launch_ex = load_symbol<decltype(launch_ex)>(driver, "cuLaunchKernelEx");
  const auto info = load_symbol<int (*)(void *, std::size_t, std::size_t *, std::size_t *)>(driver, "cuFuncGetParamInfo");
  set_context = load_symbol<decltype(set_context)>(driver, "cuCtxSetCurrent");
  get_context = load_symbol<decltype(get_context)>(driver, "cuCtxGetCurrent");
  if (get_context(&context)) throw std::runtime_error("no CUDA context is current");
  std::size_t offset = 0, size = 0, count = 0;
  for (; info(this->function, count, &offset, &size) == 0; ++count) {
    const std::size_t expected = count < parameters.size() ? parameters[count].bytes : sizeof(void *);
    if (size != expected || count >= parameters.size() + kMostExtra)
      throw std::runtime_error("the kernel's parameter " + std::to_string(count) + " has another size than expected");
  }
  if (count < parameters.size()) throw std::runtime_error("the kernel has fewer parameters than expected");
  values.resize(count);
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    std::memcpy(&values[k], &parameters[k].value, sizeof(std::int64_t)); // little-endian: the low 4 bytes come first
    if (parameters[k].address < 0) continue;
    address_uses.resize(std::max<std::size_t>(address_uses.size(), parameters[k].address + 1));
    address_uses[parameters[k].address].push_back(k);
  }
  for (auto &value : values) value_pointers.push_back(&value);
}

void Launch::set_address(std::size_t index, std::uint64_t address) {
  if (index >= address_uses.size()) return;
  for (std::size_t k : address_uses[index]) values[k] = address;
}

bool Launch::is_in_context() const {
  void *current = nullptr;
  return get_context(&current) == 0 && current == context;
}

int Launch::try_once(std::uint64_t stream) {
  if (early) {
    Attribute attribute{kSerialization, {}, 1, {}};
    const Config config{{programs, 1, 1}, {threads, 1, 1}, shared, reinterpret_cast<void *>(stream), &attribute, 1};
    return launch_ex(&config, function, value_pointers.data(), nullptr);
  }
  return launch(function, programs, 1, 1, threads, 1, 1, shared, reinterpret_cast<void *>(stream), value_pointers.data(), nullptr);
}

void Launch::operator()(std::uint64_t stream) {
  int error = try_once(stream);
  if (error == kInvalidContext && set_context(context) == 0) error = try_once(stream);
  if (error) throw std::runtime_error("the CUDA driver refused the launch with error " + std::to_string(error));
}

} // namespace ridgeline
