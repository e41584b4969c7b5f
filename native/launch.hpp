// A GPU kernel that is launched again and again: its parameters lie ready, only its pointers change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ridgeline {

// One parameter as the kernel declares it: 4 or 8 bytes, a constant, or the pointer given as the `pointer`-th at launch.
struct Parameter {
  int bytes;
  int pointer; // -1: a constant
  std::int64_t value;
};

class Launch {
public:
  // `library` is the CUDA driver. Throws std::runtime_error if it is not there or if it says that the kernel's
  // parameters are not these; further pointers of the kernel's own, such as a compiler's scratch memory, are null.
  // `early`: it may begin before the kernel ahead of it in the stream has ended, and waits for that one by itself
  // (programmatic dependent launch).
  Launch(std::uint64_t function, unsigned programs, unsigned threads, unsigned shared,
         const std::vector<Parameter> &parameters, const std::string &library, bool early);
  void point(std::size_t pointer, std::uint64_t to);
  bool at_home() const; // whether the context this was made in is the current one
  // Throws std::runtime_error with the driver's error number. A thread that has not touched the GPU before gets the
  // context this was made in.
  void operator()(std::uint64_t stream);

private:
  int try_once(std::uint64_t stream);

  void *function, *context = nullptr;
  unsigned programs, threads, shared;
  bool early;
  std::vector<std::uint64_t> values;
  std::vector<void *> places;          // of the values, as the driver wants them
  std::vector<std::vector<std::size_t>> pointers; // where each pointer stands among the values
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  int (*launch_ex)(const void *, void *, void **, void **) = nullptr;
  int (*set_context)(void *);
  int (*get_context)(void **);
};

} // namespace ridgeline
