// A GPU kernel that is launched many times: its parameters are prepared once, and only its pointers change.
//
// Why: a small call on a GPU costs as much as its launch. Triton's own dispatch reads every argument and takes longer than
// the kernel. How much: benchmarks/records/h200-trajectory-calls.txt, measured on an H200.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ridgeline {

// One parameter as the kernel declares it: 4 or 8 bytes; a constant, or the address with the index `address`.
struct Parameter {
  int bytes;
  int address; // -1: a constant
  std::int64_t value;
};

class Launch {
public:
  // `library` is the CUDA driver. Throws std::runtime_error if the driver is missing or if it reports other parameters for
  // the kernel. Further pointers of the kernel, such as a compiler's scratch memory, are null.
  // `early`: the kernel may start before the previous kernel in the stream has ended, and waits for it by itself
  // (programmatic dependent launch).
  Launch(std::uint64_t function, unsigned programs, unsigned threads, unsigned shared,
         const std::vector<Parameter> &parameters, const std::string &library, bool early);
  void set_address(std::size_t index, std::uint64_t address);
  bool is_in_context() const; // whether the current context is the one that this object was made in
  // Throws std::runtime_error with the driver's error number. A thread that has not used the GPU before gets the context
  // that this object was made in.
  void operator()(std::uint64_t stream);

private:
  int try_once(std::uint64_t stream);

  void *function, *context = nullptr;
  unsigned programs, threads, shared;
  bool early;
  std::vector<std::uint64_t> values;
  std::vector<void *> value_pointers;                 // as the driver expects them
  std::vector<std::vector<std::size_t>> address_uses; // for each address: the indices of its values
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  int (*launch_ex)(const void *, void *, void **, void **) = nullptr;
  int (*set_context)(void *);
  int (*get_context)(void **);
};

} // namespace ridgeline
