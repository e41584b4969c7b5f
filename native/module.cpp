// The extension module ridgeline.native. Each folder binds its own functions.
#include <nanobind/nanobind.h>

#include "bind.hpp"

NB_MODULE(native, m) {
#ifdef NDEBUG
  nanobind::set_leak_warnings(false); // what a daemon thread still holds when the process ends is no leak
#endif
  m.doc() = "The CPU's hot loops, chosen for this CPU's instruction set at run time.";
  ridgeline::bind_threads(m);
  ridgeline::bind_memory(m);
  ridgeline::bind_resample(m);
  ridgeline::bind_direct_resample(m);
  ridgeline::bind_launch(m);
  ridgeline::bind_tokenizer(m);
  ridgeline::bind_rows(m);
  ridgeline::bind_encoder(m);
  ridgeline::bind_search(m);
  ridgeline::bind_graph(m);
  ridgeline::bind_rabitq(m);
  ridgeline::bind_ledger(m);
  ridgeline::bind_collective(m);
  ridgeline::bind_recommend(m);
  ridgeline::bind_serve(m);
  ridgeline::bind_video(m);
  ridgeline::bind_audit(m);
}
