// Collectives as calls of XLA programs: the handler that `ridgeline.fabric.jax` registers. It runs on a thread of XLA that
// does not hold the GIL, and reads and writes XLA's own buffers.
#pragma once

#include <cstdint>
#include <string>

#include "collective/collective.hpp"
#include "collective/xla_frame.hpp"

namespace ridgeline {

// Makes a call on the communicator `id` (of register_xla); the text is empty if it succeeded, else it says why not.
std::string run_xla_call(std::int64_t id, Call call);

extern "C" xla::Error *ridgeline_xla_call(xla::CallFrame *frame);

} // namespace ridgeline
