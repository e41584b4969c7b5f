// Python class of collective/. Memory comes as addresses, because the caller has checked the arrays. A call returns a
// number (0: success); `blamed` is the rank that caused a failure.
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "collective/collective.hpp"
#include "collective/xla_calls.hpp"
#include "released_gil.hpp"
#include "transport/datagram.hpp"
#include "transport/network.hpp"
#include "transport/ucx.hpp"
#include "transport/wire.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Steps = nb::ndarray<const std::int32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Header = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t, std::int32_t, std::uint32_t,
                        std::int64_t, std::string>;
using FailureRow = std::tuple<int, int, int, std::uint32_t, std::uint32_t, double>;

struct GilGuard;

struct Engine {
  explicit Engine(std::unique_ptr<RankEngine> rank_engine) : owner(std::move(rank_engine)), engine(*owner) {}

  std::unique_ptr<RankEngine> owner;
  RankEngine &engine;
  int blamed = -1;
  std::mutex one_call{}; // one call at a time
  std::atomic<PyThreadState *> caller{nullptr}; // the thread of that call
  GilGuard *gil_guard = nullptr;

  template <class Work> int run_call(std::uint64_t bytes, Work work);
  template <class Work> int run_guarded(Work work);
  int run_without_gil(const Call &call); // from a thread that does not hold the GIL
};

struct SharedEngine : Engine {
  explicit SharedEngine(std::unique_ptr<Collective> one) : Engine(std::move(one)), shared(static_cast<Collective &>(engine)) {}
  Collective &shared;
};

struct NetworkEngine : Engine {
  explicit NetworkEngine(std::unique_ptr<NetworkCollective> one)
      : Engine(std::move(one)), network(static_cast<NetworkCollective &>(engine)) {}
  NetworkCollective &network;
};

// transport, file of the control stream, files of the lanes, files of their memory, keys of the control stream and the lanes,
// address of the worker
using LinkRow = std::tuple<int, int, std::vector<int>, std::vector<int>, std::vector<std::pair<std::uint64_t, std::uint64_t>>, nb::bytes>;
using PeerRow = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t>;

bool check_signals() {
  nb::gil_scoped_acquire hold;
  return PyErr_CheckSignals() != 0;
}

// Holds the GIL during a short call, because releasing it costs a good part of the call. It releases the GIL for much data,
// for a long wait, and while another thread uses the engine.
struct GilGuard {
  static constexpr std::uint64_t kKeepGil = 16 << 10; // bytes

  GilGuard(Engine &engine_object, std::uint64_t bytes) : engine_object_(engine_object) {
    PyThreadState *const thread = PyThreadState_Get();
    if (bytes > kKeepGil) release_gil();
    if (!engine_object.one_call.try_lock()) {
      release_gil();
      engine_object.one_call.lock();
    }
    engine_object.caller.store(thread, std::memory_order_relaxed);
    engine_object.gil_guard = this;
  }
  GilGuard(const GilGuard &) = delete;
  GilGuard &operator=(const GilGuard &) = delete;
  ~GilGuard() {
    engine_object_.gil_guard = nullptr;
    engine_object_.caller.store(nullptr, std::memory_order_relaxed);
    engine_object_.one_call.unlock();
    restore_gil();
  }
  void restore_gil() {
    if (thread_state_) PyEval_RestoreThread(thread_state_);
    thread_state_ = nullptr;
  }
  void release_gil() {
    if (!thread_state_) thread_state_ = PyEval_SaveThread();
  }

private:
  Engine &engine_object_;
  PyThreadState *thread_state_ = nullptr;
};

template <class Work> int Engine::run_call(std::uint64_t bytes, Work work) {
  if (engine.is_forked()) return int(Fault::forked); // before the lock, which a thread of the parent may have held
  // A signal handler runs in the middle of a wait of its own thread, which would never end if it waited for the lock.
  if (caller.load(std::memory_order_relaxed) == PyThreadState_Get()) return int(Fault::nested);
  GilGuard one(*this, bytes);
  const int code = run_guarded(work);
  if (code != int(Fault::interrupted)) return code;
  one.restore_gil();
  throw nb::python_error();
}

template <class Work> int Engine::run_guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const Failure &trouble) {
    blamed = trouble.rank;
    // After a mismatch all ranks have left the call at the same point, so the communicator stays usable.
    if (trouble.fault != Fault::mismatch && trouble.fault != Fault::failed_before) engine.fail(trouble);
    return int(trouble.fault);
  } catch (const std::invalid_argument &) { // thrown before any data moves
    throw;
  } catch (...) {
    engine.fail({Fault::broken, -1});
    throw;
  }
}

int Engine::run_without_gil(const Call &call) {
  if (engine.is_forked()) return int(Fault::forked);
  std::lock_guard<std::mutex> lock(one_call);
  Call one = call;
  if (one.op == Op::broadcast) { // in place
    if (one.root == engine.me() && one.count) std::memcpy(one.out, one.in, one.count * size_of(one.type));
    one.in = one.out;
  }
  return run_guarded([&] { engine.run(one); });
}

// The communicators that XLA programs may call, by number. A compiled program can outlive its communicator.
struct XlaTarget {
  nb::object owner; // keeps the engine alive
  nb::object describe; // (code, op) -> the text of the error
  Engine *engine;
  std::int64_t timeout_ns;
};
std::mutex xla_targets_lock;
std::map<std::int64_t, std::shared_ptr<XlaTarget>> &xla_targets() {
  static auto *const all = new std::map<std::int64_t, std::shared_ptr<XlaTarget>>; // never destroyed: Python is gone by then
  return *all;
}

std::int64_t ns(double seconds) { return std::int64_t(std::min(seconds, 1e9) * 1e9); }
void *at(std::uint64_t address) { return reinterpret_cast<void *>(address); }

// The types that NumPy names by one letter; −1: the slow path decides.
int parse_format(const char *format) {
  if (!format || format[1]) return -1;
  switch (format[0]) {
  case 'e': return int(Number::f16);
  case 'f': return int(Number::f32);
  case 'd': return int(Number::f64);
  case 'b': return int(Number::i8);
  case 'h': return int(Number::i16);
  case 'i': return int(Number::i32);
  case 'l': case 'q': return int(Number::i64);
  case 'B': return int(Number::u8);
  default: return -1;
  }
}

// An array for the short path, read without Python code: then the call costs little more than the message. All other
// arrays (types, strides, tensors, read-only) and timeouts take the general path, which also raises the errors.
struct View {
  Py_buffer buffer{};
  int type = -1;

  explicit View(nb::handle array, bool written = true) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (written ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array.ptr(), &buffer, flags)) PyErr_Clear();
    else type = parse_format(buffer.format);
  }
  View(const View &) = delete;
  View &operator=(const View &) = delete;
  ~View() { if (buffer.obj) PyBuffer_Release(&buffer); }

  bool fits() const { return type >= 0; }
  std::uint64_t count() const { return buffer.len / buffer.itemsize; }
};

int all_reduce_array(Engine &self, nb::handle array, int how, double timeout) {
  const View x(array);
  if (!x.fits() || !(timeout > 0)) return -1;
  return self.run_call(x.buffer.len, [&] {
    self.engine.run({Op::all_reduce, x.buffer.buf, x.buffer.buf, x.count(), Number(x.type), Combine(how), 0, ns(timeout)});
  });
}

int broadcast_array(Engine &self, nb::handle array, int root, double timeout) {
  const View x(array);
  if (!x.fits() || root < 0 || root >= self.engine.size() || !(timeout > 0)) return -1;
  return self.run_call(x.buffer.len, [&] {
    self.engine.run({Op::broadcast, x.buffer.buf, x.buffer.buf, x.count(), Number(x.type), Combine(0), root, ns(timeout)});
  });
}

int all_gather_array(Engine &self, nb::handle array, nb::handle out, int ranks, double timeout) {
  const View x(array, false), y(out);
  if (!x.fits() || x.type != y.type || y.count() != x.count() * std::uint64_t(ranks) || !(timeout > 0)) return -1;
  return self.run_call(y.buffer.len, [&] {
    self.engine.run({Op::all_gather, x.buffer.buf, y.buffer.buf, x.count(), Number(x.type), Combine(0), 0, ns(timeout)});
  });
}

bool is_other_rank(const Engine &self, int rank) { return rank >= 0 && rank < self.engine.size() && rank != self.engine.me(); }

int send_array(Engine &self, nb::handle array, int to, double timeout) {
  const View x(array, false);
  if (!x.fits() || !is_other_rank(self, to) || !(timeout > 0)) return -1;
  return self.run_call(x.buffer.len, [&] { self.engine.send(x.buffer.buf, x.buffer.len, Number(x.type), to, ns(timeout)); });
}

int receive_array(Engine &self, nb::handle array, int from, double timeout) {
  const View x(array);
  if (!x.fits() || !is_other_rank(self, from) || !(timeout > 0)) return -1;
  return self.run_call(x.buffer.len, [&] { self.engine.receive(x.buffer.buf, x.buffer.len, Number(x.type), from, ns(timeout)); });
}

} // namespace

std::string run_xla_call(std::int64_t id, Call call) {
  std::shared_ptr<XlaTarget> target;
  {
    std::lock_guard<std::mutex> lock(xla_targets_lock);
    const auto at = xla_targets().find(id);
    if (at != xla_targets().end()) target = at->second;
  }
  if (!target) return "FabricError: the communicator of this program is closed.";
  call.timeout_ns = target->timeout_ns;
  std::string text;
  int code = 0;
  try {
    code = target->engine->run_without_gil(call);
  } catch (const std::exception &error) {
    text = error.what();
  }
  if (code) {
    nb::gil_scoped_acquire hold;
    if (code == int(Fault::interrupted)) PyErr_Clear(); // of the signal: XLA raises an error of its own
    try {
      text = nb::cast<std::string>(target->describe(code, int(call.op)));
    } catch (nb::python_error &error) {
      text = error.what();
    }
  }
  if (target.use_count() == 1) { // closed during the call
    nb::gil_scoped_acquire hold;
    target.reset();
  }
  return text;
}

void bind_collective(nb::module_ &m) {
  m.attr("FABRIC_CONTEXTS") = kContexts;
  m.attr("FABRIC_FRAGMENT_BYTES") = kFragment;
  m.attr("FABRIC_MESSAGE_BYTES") = kMessage;
  m.attr("FABRIC_INLINE_BYTES") = kInlineAll;
  m.attr("FABRIC_REFUSED_CALL") = kRefusedCall;
  m.attr("FABRIC_OWN_SCHEDULE") = kOwnSchedule;
  m.def("fabric_bytes", &Segment::bytes, "ranks"_a, "arena_bytes"_a, "Bytes of the memory that this many ranks share (sparse).");
  m.def("reduce_arrays", [](std::uint64_t to, const std::vector<std::uint64_t> &from, std::uint64_t count, int type, int how) {
    std::vector<const void *> sources;
    for (std::uint64_t address : from) sources.push_back(at(address));
    const ReduceLoops loops = reduce_loops(chosen_isa());
    ReleasedGil release;
    loops.reduce(at(to), sources.data(), int(sources.size()), count, Number(type), Combine(how));
  }, "to"_a, "sources"_a, "count"_a, "type"_a, "how"_a, "Run the loops of a reduction on addresses.");
  m.def("shared_stream_bytes", &shared_stream_bytes, "Bytes of the memory of one stream between two ranks of a host.");
  nb::class_<Stream>(m, "DatagramStream", "A reliable byte stream over UDP, alone: for tests.")
      .def_static("open", [](int fd, std::uint64_t send_key, std::uint64_t receive_key, std::uint64_t buffer_bytes, double silence) {
        DatagramOptions options;
        options.buffer_bytes = buffer_bytes, options.silence_ns = ns(silence);
        return make_datagram_stream(fd, send_key, receive_key, options, [] {}).release();
      }, "fd"_a, "send_key"_a, "receive_key"_a, "buffer_bytes"_a = 4 << 20, "silence"_a = 1.5, nb::rv_policy::take_ownership,
         "fd: a connected UDP socket, which this object closes.")
      .def("write", [](Stream &self, nb::bytes data) {
        const iovec piece{const_cast<char *>(data.c_str()), data.size()};
        return self.write(&piece, 1);
      }, "data"_a, "Bytes that were taken; -1: the other end has closed.")
      .def("read", [](Stream &self, std::size_t bytes) -> std::optional<nb::bytes> {
        std::string data(bytes, 0);
        const ssize_t got = self.read(data.data(), bytes);
        if (got < 0) return std::nullopt;
        return nb::bytes(data.data(), std::size_t(got));
      }, "bytes"_a, "What has arrived; None: the other end has closed.")
      .def("is_flushed", &Stream::is_flushed, "Whether all that was written has arrived, or never will.")
      .def("end", &Stream::end)
      .def_prop_ro("state", [](Stream &self) -> std::tuple<std::int64_t, std::uint64_t, std::uint64_t> {
        const StreamState state = self.state();
        return {state.rtt_ns, state.retransmissions, state.strangers};
      }, "(round-trip time in ns, retransmissions, packets of strangers).");
  nb::class_<UcxWorker>(m, "UcxWorker", "This rank's end of all its streams over UCX.")
      .def_static("make", &UcxWorker::make, "devices"_a = "", nb::call_guard<ReleasedGil>(),
                  "devices: as in UCX_NET_DEVICES; raises RuntimeError if UCX cannot be used.")
      .def_prop_ro("address", [](UcxWorker &self) {
        const std::string address = self.address();
        return nb::bytes(address.data(), address.size());
      });
  m.def("find_ucx_problem", &find_ucx_problem, "Why UCX cannot be used on this host; empty: it can.");
  m.def("ucx_version", &ucx_version, "The version of the UCX library.");
  nb::class_<Wire>(m, "Wire", "A network between network namespaces that delays, loses, doubles and reorders packets.")
      .def("__init__", [](Wire *self, const std::vector<std::string> &namespaces, std::vector<std::uint32_t> addresses,
                          const std::string &device, double delay, double loss, double twice, double late, std::uint64_t seed) {
        WireOptions options;
        options.delay_ns = ns(delay), options.loss = loss, options.twice = twice, options.late = late, options.seed = seed;
        new (self) Wire(namespaces, std::move(addresses), device, options);
      }, "namespaces"_a, "addresses"_a, "device"_a = "eth0", "delay"_a = 0.0, "loss"_a = 0.0, "twice"_a = 0.0, "late"_a = 0.0, "seed"_a = 0,
         "addresses: IPv4, as numbers; delay: seconds; the others: shares of packets. Raises RuntimeError.")
      .def("end", &Wire::end, nb::call_guard<ReleasedGil>(), "End the thread and the devices.")
      .def_prop_ro("carried", &Wire::carried)
      .def_prop_ro("lost", &Wire::lost);
  nb::class_<Engine>(m, "RankEngine", "One rank's end of a communicator.")
      .def("all_reduce", &all_reduce_array, "array"_a.none(), "how"_a, "timeout"_a, "In place; −1: this array needs the general path.")
      .def("broadcast", &broadcast_array, "array"_a.none(), "root"_a, "timeout"_a, "As all_reduce.")
      .def("all_gather", &all_gather_array, "array"_a.none(), "out"_a.none(), "ranks"_a, "timeout"_a, "As all_reduce.")
      .def("send_array", &send_array, "array"_a.none(), "to"_a, "timeout"_a, "As all_reduce.")
      .def("recv_array", &receive_array, "array"_a.none(), "source"_a, "timeout"_a, "As all_reduce.")
      .def("run",
           [](Engine &self, int op, std::uint64_t in, std::uint64_t out, std::uint64_t count, int type, int how, int root,
              double timeout, const char *type_name) {
             return self.run_call(~0ull, [&] {
               self.engine.run({Op(op), at(in), at(out), count, Number(type), Combine(how), root, ns(timeout), type_name});
             });
           },
           "op"_a, "source"_a, "target"_a, "count"_a, "type"_a, "how"_a, "root"_a, "timeout"_a, "type_name"_a = "")
      .def("run_steps",
           [](Engine &self, int op, std::uint64_t in, std::uint64_t out, std::uint64_t count, int type, int how, int root,
              double timeout, const char *type_name, Steps steps, int chunks, int widest, std::uint32_t algorithm,
              std::uint32_t schedule_hash) {
             return self.run_call(~0ull, [&] {
               self.engine.run({Op(op), at(in), at(out), count, Number(type), Combine(how), root, ns(timeout), type_name},
                               Program{steps.data(), steps.shape(0), chunks, widest, algorithm, schedule_hash});
             });
           },
           "op"_a, "source"_a, "target"_a, "count"_a, "type"_a, "how"_a, "root"_a, "timeout"_a, "type_name"_a, "steps"_a, "chunks"_a,
           "widest"_a, "algorithm"_a, "schedule_hash"_a)
      .def("refuse", [](Engine &self, int op, double timeout) {
        return self.run_call(0, [&] { self.engine.refuse(Op(op), ns(timeout)); });
      }, "op"_a, "timeout"_a, "Tell the other ranks that this rank refuses its arguments; counts as a call, does not wait.")
      .def("send", [](Engine &self, std::uint64_t from, std::uint64_t bytes, int type, int to, const char *type_name, double timeout) {
        return self.run_call(bytes, [&] { self.engine.send(at(from), bytes, Number(type), to, ns(timeout), type_name); });
      }, "source"_a, "bytes"_a, "type"_a, "to"_a, "type_name"_a, "timeout"_a)
      .def("recv", [](Engine &self, std::uint64_t to, std::uint64_t bytes, int type, int from, const char *type_name, double timeout) {
        return self.run_call(bytes, [&] { self.engine.receive(at(to), bytes, Number(type), from, ns(timeout), type_name); });
      }, "target"_a, "bytes"_a, "type"_a, "source"_a, "type_name"_a, "timeout"_a)
      .def("abort", [](Engine &self) { if (!self.engine.is_forked()) self.engine.abort(); },
           "End the communicator for all ranks, from any thread; calls in progress fail.")
      .def("header", [](Engine &self, int rank, bool disputed) -> Header {
        const auto [c, w] = disputed ? self.engine.disputed(rank) : self.engine.read_last_header(rank);
        const bool has_name = Number(c.type) == Number::bytes;
        return {w.sequence, c.op, c.type, c.how, c.count(), c.root(), c.algorithm, w.stamp,
                has_name ? self.engine.type_name(rank, w.sequence) : ""};
      }, "rank"_a, "disputed"_a, "(sequence, op, type, how, count, root, algorithm, stamp, type name) of a rank's call.")
      .def_prop_ro("first_failure", [](Engine &self) -> std::optional<FailureRow> {
        if (!self.engine.is_forked() && self.one_call.try_lock()) {
          self.engine.look_for_failures();
          self.one_call.unlock();
        }
        const FirstFailure *first = self.engine.first_failure();
        if (!first) return std::nullopt;
        return FailureRow{first->fault, first->rank, first->reported_by, first->op, first->sequence, double(first->timeout_ns) / 1e9};
      }, "(fault, rank, reporting rank, op, sequence, timeout) of the failure that ended this communicator.")
      .def_prop_ro("call_number", [](Engine &self) { return self.engine.call_number(); },
                   "The sequence number of the last call; for send and recv: of the message between the two ranks.")
      .def_prop_ro("is_forked", [](Engine &self) { return self.engine.is_forked(); },
                   "Whether this process is a child of the rank that made the object.")
      .def("usage", [](Engine &self, int op) -> std::tuple<std::uint64_t, std::uint64_t, std::int64_t> {
        const Usage &u = self.engine.usage[op];
        return {u.calls, u.bytes, u.ns};
      }, "op"_a, "(calls, bytes, ns) of an operation.")
      .def_prop_ro("waited_ns", [](Engine &self) { return self.engine.waited_ns(); })
      .def_prop_ro("blamed", [](Engine &self) { return self.blamed; });
  m.def("register_xla", [](std::int64_t id, nb::object owner, nb::object describe, double timeout) {
    Engine &engine = nb::cast<Engine &>(owner);
    auto target = std::make_shared<XlaTarget>(XlaTarget{std::move(owner), std::move(describe), &engine, ns(timeout)});
    std::lock_guard<std::mutex> lock(xla_targets_lock);
    xla_targets()[id] = std::move(target);
  }, "id"_a, "engine"_a, "describe"_a, "timeout"_a,
     "Let XLA programs call this communicator by a number; describe: (code, op) to the text of an error.");
  m.def("unregister_xla", [](std::int64_t id) {
    std::shared_ptr<XlaTarget> target; // released after the lock
    std::lock_guard<std::mutex> lock(xla_targets_lock);
    const auto at = xla_targets().find(id);
    if (at != xla_targets().end()) target = at->second, xla_targets().erase(at);
  }, "id"_a, "Calls of XLA programs with this number fail from now on.");
  m.def("xla_handler", [] { return nb::capsule(reinterpret_cast<void *>(&ridgeline_xla_call)); },
        "The handler of XLA's foreign function interface, for jax.ffi.register_ffi_target.");
  nb::class_<SharedEngine, Engine>(m, "Collective", "One rank's end of a communicator over shared memory.")
      .def("__init__",
           [](SharedEngine *self, int fd, int world, int context, std::uint64_t arena_bytes, const std::vector<int> &members, int me,
              const std::vector<int> &pids, const std::vector<int> &pidfds, bool crowded) {
             new (self) SharedEngine{std::make_unique<Collective>(fd, world, context, arena_bytes, members, me, pids, pidfds, crowded)};
             self->shared.waiter.takes_long = [self] { if (self->gil_guard) self->gil_guard->release_gil(); };
             self->shared.waiter.interrupted = check_signals;
           },
           "fd"_a, "world"_a, "context"_a, "arena_bytes"_a, "members"_a, "me"_a, "pids"_a, "pidfds"_a, "crowded"_a)
      .def("can_read", [](SharedEngine &self, int rank, std::uint64_t address, std::uint64_t expected) {
        return self.shared.can_read(rank, address, expected);
      }, "rank"_a, "address"_a, "expected"_a, "Whether this process may read another rank's memory.")
      .def_prop_ro("arena", [](SharedEngine &self) { return reinterpret_cast<std::uint64_t>(self.shared.arena()); })
      .def_prop_rw("small", [](SharedEngine &self) { return self.shared.small; },
                   [](SharedEngine &self, std::uint64_t value) { self.shared.small = std::min<std::uint64_t>(value, kSlot); })
      .def_prop_rw("full_reduce_bytes", [](SharedEngine &self) { return self.shared.full_reduce_bytes; },
                   [](SharedEngine &self, std::uint64_t value) { self.shared.full_reduce_bytes = value; })
      .def_prop_rw("foreign_from", [](SharedEngine &self) { return self.shared.foreign_from; },
                   [](SharedEngine &self, std::uint64_t value) { self.shared.foreign_from = value; })
      .def_prop_rw("foreign_moves_from", [](SharedEngine &self) { return self.shared.foreign_moves_from; },
                   [](SharedEngine &self, std::uint64_t value) { self.shared.foreign_moves_from = value; })
      .def_prop_rw("slice", [](SharedEngine &self) { return self.shared.slice; },
                   [](SharedEngine &self, std::uint64_t value) { self.shared.slice = std::max<std::uint64_t>(value, 4096); })
      .def_prop_rw("crowded", [](SharedEngine &self) { return self.shared.waiter.crowded; },
                   [](SharedEngine &self, bool value) { self.shared.waiter.crowded = value; })
      .def_prop_rw("foreign", [](SharedEngine &self) { return self.shared.foreign; },
                   [](SharedEngine &self, bool value) { self.shared.foreign = value; });
  nb::class_<NetworkEngine, Engine>(m, "NetworkCollective", "One rank's end of a communicator between hosts.")
      .def("__init__",
           [](NetworkEngine *self, int me, const std::vector<LinkRow> &rows, std::uint64_t small, bool crowded, std::shared_ptr<UcxWorker> ucx) {
             std::vector<LinkFiles> files;
             for (const auto &[transport, control, lanes, memory, keys, address] : rows)
               files.push_back({Transport(transport), control, lanes, memory, keys, std::string(address.c_str(), address.size())});
             new (self) NetworkEngine{std::make_unique<NetworkCollective>(me, std::move(files), small, crowded, std::move(ucx))};
             self->network.takes_long = [self] { if (self->gil_guard) self->gil_guard->release_gil(); };
             self->network.interrupted = check_signals;
           },
           "me"_a, "links"_a, "small"_a, "crowded"_a, "ucx"_a.none() = nb::none(),
           "links: by rank (transport, control stream, lanes, memory of the lanes), all as files, which this object closes, keys, and "
           "the address of a worker.")
      .def("end", [](NetworkEngine &self) { self.network.end(); }, nb::call_guard<ReleasedGil>(), "Close all streams.")
      .def("link_state", [](NetworkEngine &self, int rank) -> std::tuple<std::int64_t, std::uint64_t, std::uint64_t> {
        const StreamState state = self.network.state(rank);
        return {state.rtt_ns, state.retransmissions, state.strangers};
      }, "rank"_a, "(round-trip time in ns, retransmissions, packets of strangers) of the streams to a rank.")
      .def("peer_usage", [](NetworkEngine &self, int rank, int op) -> PeerRow {
        const PeerUsage &u = self.network.peer_usage(rank, op);
        return {u.calls, u.sent, u.received, u.ns};
      }, "rank"_a, "op"_a, "(calls, bytes sent, bytes received, ns) of an operation with a rank.")
      .def("is_gone", [](NetworkEngine &self, int rank) { return rank != self.network.me() && self.network.is_gone(rank); }, "rank"_a,
           "Whether a rank has closed a stream.")
      .def("waits_for", [](NetworkEngine &self, int rank) { return self.network.waits_for(rank); }, "rank"_a,
           "The rank that a rank has been waiting for, as far as this one knows; -1: none.")
      .def_prop_ro("current_call", [](NetworkEngine &self) { return self.network.current_call(); },
                   "Sequence number << 8 | operation + 1 of the call in progress; 0: none.");
}

} // namespace ridgeline
