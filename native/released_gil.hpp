// `ReleasedGil release;` releases the GIL until the end of the scope, in place of nb::gil_scoped_release.
//
// Why: before CPython 3.14, a daemon thread that wants the GIL back while the interpreter ends is ended by pthread_exit. Its
// unwinding must not leave a destructor: with nanobind's class the process ends with "terminate called without an active
// exception" and exit status 134, instead of its own. Here such a thread sleeps until the process ends, as in CPython 3.14.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace ridgeline {

class ReleasedGil {
public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
#if defined(__GLIBCXX__)
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind &) {
      for (;;) pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }
  ReleasedGil(const ReleasedGil &) = delete;
  ReleasedGil &operator=(const ReleasedGil &) = delete;

private:
  PyThreadState *state_;
};

} // namespace ridgeline
