// Collectives through shared memory: slots for small calls, areas slice by slice, or the buffers of the callers.
#include "collective/collective.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <pthread.h>
#include <sys/uio.h>

namespace ridgeline {

std::atomic<std::uint32_t> forks{0};

namespace {

constexpr std::uint64_t kLead = 1;      // slices that a rank fills before it reads the first slice of the others
constexpr std::uint32_t kAhead = 4;     // slices that a root may be ahead of the readers
constexpr std::size_t kLook = 64 << 10; // bytes read at a time from other buffers: they stay in the first caches

} // namespace

std::size_t sent_bytes(const Call &call, int ranks) {
  const std::size_t block = call.count * size_of(call.type);
  return call.op == Op::reduce_scatter || call.op == Op::all_to_all ? block * ranks : block;
}

bool overwrites_input(const Call &call, int ranks, int me) {
  const std::size_t block = call.count * size_of(call.type), sent = sent_bytes(call, ranks);
  const char *in = static_cast<const char *>(call.in), *out = static_cast<const char *>(call.out);
  const std::size_t received = call.op == Op::all_gather || call.op == Op::all_to_all ? block * ranks : block;
  if (!block || in >= out + received || out >= in + sent) return false;
  switch (call.op) {
  case Op::all_gather: return in != out + me * block;
  case Op::reduce_scatter: return out != in + me * block; // no other rank reads that part
  case Op::reduce: return me == call.root && in != out;
  default: return in != out;
  }
}

std::uint32_t count_forks() { // of this process and its ancestors, since the first communicator
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  if (registered) throw std::runtime_error("pthread_atfork failed");
  return forks.load();
}

std::uint32_t hash_text(const char *text) { // FNV-1a
  std::uint32_t hash = 2166136261u;
  for (; *text; ++text) hash = (hash ^ std::uint8_t(*text)) * 16777619u;
  return hash;
}

Collective::Collective(int fd, int world, int context, std::size_t arena_bytes, std::vector<int> members, int me,
                       const std::vector<int> &pids, std::vector<int> pidfds, bool crowded)
    : waiter(segment_, members, me, pids, std::move(pidfds), crowded), segment_(fd, world, context, arena_bytes),
      members_(std::move(members)), pids_(pids), me_(me), first_failure_(segment_.first_failure(members_.at(0))),
      call_data_(members_.size()), from_(members_.size()),
      loops_(reduce_loops(chosen_isa())) {
  if (me_ < 0 || me_ >= size() || int(pids_.size()) != world) throw std::invalid_argument("ranks do not fit the world");
  for (int rank : members_)
    if (rank < 0 || rank >= world) throw std::invalid_argument("there is no such rank");
  // Another communicator may have used the context before. All members see the same count, because they stopped at the same call.
  progress_ = segment_.line(members_[me_]).progress.load();
}

void Collective::fail(const Failure &failure) {
  FirstFailure &first = first_failure_;
  std::uint32_t expected = FirstFailure::no_failure;
  if (!first.state.compare_exchange_strong(expected, FirstFailure::writing)) return;
  first.op = std::uint32_t(op_), first.sequence = number_;
  first.fault = int(failure.fault), first.rank = failure.rank, first.reported_by = members_[me_];
  first.timeout_ns = timeout_ns_;
  first.state.store(FirstFailure::written);
}

const FirstFailure *Collective::first_failure() const {
  return first_failure_.state.load() == FirstFailure::written ? &first_failure_ : nullptr;
}

std::pair<Called, CallData> Collective::read_last_header(int rank) const {
  const Line &line = segment_.line(members_[rank]);
  return read_header(rank, line.call_data[0].stamp > line.call_data[1].stamp ? 0 : 1);
}

void Collective::sync() {
  if (size() > 2 && waiter.all(members_, me_, progress_)) return;
  for (int rank = 0; rank < size(); ++rank)
    if (rank != me_) {
      Line &line = segment_.line(members_[rank]);
      waiter.until(line.progress, line.waiters, progress_, members_[rank]);
    }
}

void Collective::advance_and_wait() {
  Line &own_line = segment_.line(members_[me_]);
  Waiter::raise(own_line.progress, own_line.waiters, ++progress_);
  sync();
}

// Publishes the call of this rank, with small data in its slot, and compares the calls when all ranks have arrived. `hidden`:
// the other ranks must not read the memory of the data.
std::uint32_t Collective::arrive(const Call &call, std::uint32_t algorithm, std::uint32_t schedule_hash, bool hidden,
                                 std::size_t slot_bytes) {
  if (refused_) sync(), refused_ = false; // the line is free when all ranks have seen the refusal
  const std::uint32_t sequence = sequence_++;
  Line &own_line = segment_.line(members_[me_]);
  if (slot_bytes) std::memcpy(segment_.slot(members_[me_], sequence), call.in, slot_bytes);
  CallData call_data{sequence, std::uint32_t(DataPath::bounce), 0, start_ns_};
  const char *data = static_cast<const char *>(call.in);
  const std::size_t all = sent_bytes(call, size());
  const bool adds = call.op == Op::all_reduce || call.op == Op::reduce_scatter;
  if (hidden) {
    // through the area
  } else if (data >= arena() && data + all <= arena() + segment_.arena_bytes()) {
    call_data.path = std::uint32_t(DataPath::registered);
    call_data.address = data - arena();
  } else if (foreign && all >= (adds ? foreign_from : foreign_moves_from)) {
    call_data.path = std::uint32_t(DataPath::foreign);
    call_data.address = reinterpret_cast<std::uint64_t>(data);
  }
  own_line.call_data[sequence % 2] = call_data;
  static_assert(sizeof(Called) == 16, "compared byte by byte");
  const Called called(std::uint32_t(call.op), std::uint32_t(call.type), std::uint32_t(call.how), algorithm,
                      hash_type(call.type, call.type_name) ^ schedule_hash, call.root, call.count);
  own_line.called[sequence % 2] = called;
  if (call.type == Number::bytes) std::strncpy(own_line.type_name[sequence % 2], call.type_name, kTypeName - 1);
  advance_and_wait();
  for (int rank = 0; rank < size(); ++rank) {
    if (std::memcmp(&segment_.line(members_[rank]).called[sequence % 2], &called, sizeof called)) {
      disputed_ = sequence;
      throw Failure{Fault::mismatch, members_[rank]};
    }
  }
  return sequence;
}

void Collective::refuse(Op op, std::int64_t timeout_ns) {
  start(op, sequence_, timeout_ns);
  if (refused_) sync();
  const std::uint32_t sequence = sequence_++;
  Line &own_line = segment_.line(members_[me_]);
  own_line.call_data[sequence % 2] = {sequence, std::uint32_t(DataPath::bounce), 0, start_ns_};
  own_line.called[sequence % 2] = Called(std::uint32_t(op), 0, 0, kRefusedCall, 0, 0, 0);
  Waiter::raise(own_line.progress, own_line.waiters, ++progress_);
  refused_ = true;
}

// The start of the part of each rank; parts begin on a cache line.
std::vector<std::uint64_t> Collective::parts(const Call &call) const {
  const std::uint64_t n = size(), line = std::max<std::uint64_t>(1, 64 / size_of(call.type));
  std::vector<std::uint64_t> begin(n + 1);
  for (std::uint64_t p = 0; p <= n; ++p)
    begin[p] = call.op == Op::reduce_scatter ? p * call.count : p == n ? call.count : (call.count / line * p / n) * line;
  return begin;
}

const char *Collective::visible_data(int rank, std::uint64_t offset) const {
  return DataPath(call_data_[rank].path) == DataPath::registered ? segment_.arena(members_[rank]) + call_data_[rank].address + offset : nullptr;
}

bool Collective::all_visible() const {
  return std::all_of(call_data_.begin(), call_data_.end(), [](const CallData &h) { return DataPath(h.path) != DataPath::bounce; });
}

bool Collective::read(int rank, std::uint64_t offset, void *to, std::size_t bytes) {
  if (const char *from = visible_data(rank, offset)) {
    std::memcpy(to, from, bytes);
    return true;
  }
  char *at = static_cast<char *>(to);
  std::uint64_t from = call_data_[rank].address + offset;
  while (bytes) {
    iovec local{at, bytes}, remote{reinterpret_cast<void *>(from), bytes};
    const ssize_t got = process_vm_readv(pids_[members_[rank]], &local, 1, &remote, 1, 0);
    if (got <= 0) {
      if (got < 0 && errno == EINTR) continue;
      throw Failure{errno == ESRCH ? Fault::dead : Fault::refused, members_[rank]};
    }
    at += got, from += got, bytes -= got;
  }
  return true;
}

bool Collective::can_read(int rank, std::uint64_t address, std::uint64_t expected) {
  std::uint64_t value = 0;
  iovec local{&value, sizeof value}, remote{reinterpret_cast<void *>(address), sizeof value};
  const ssize_t got = process_vm_readv(pids_[members_[rank]], &local, 1, &remote, 1, 0);
  return got == ssize_t(sizeof value) && value == expected;
}

void Collective::run(const Call &requested) {
  Call call = requested;
  const int n = size();
  start(call.op, sequence_, call.timeout_ns);
  const std::size_t bytes = sent_bytes(call, n);
  const bool fits = bytes <= std::min<std::uint64_t>(small, kSlot);
  const bool gives = fits && (call.op != Op::broadcast || call.root == me_);
  bool hidden = call.op == Op::all_to_all && call.in == call.out; // slice by slice it is right in place
  std::unique_ptr<char[]> staged;
  if (!fits && overwrites_input(call, n, me_)) {
    staged.reset(new char[bytes]);
    std::memcpy(staged.get(), call.in, bytes);
    call.in = staged.get();
    hidden = true;
  } else if (!fits && call.op == Op::all_reduce && call.in != call.out) {
    std::memcpy(call.out, call.in, bytes);
    call.in = call.out;
  }
  const std::uint32_t sequence = arrive(call, 0, 0, hidden, gives ? bytes : 0);
  for (int rank = 0; !fits && rank < n; ++rank) call_data_[rank] = segment_.line(members_[rank]).call_data[sequence % 2];
  if (call.count == 0 || call.op == Op::barrier) {
    // nothing more to do
  } else if (fits) {
    small_call(call, sequence);
  } else if (call.op == Op::all_reduce || call.op == Op::reduce_scatter) {
    const std::vector<std::uint64_t> begin = parts(call);
    if (all_visible()) reduce_visible(call, begin, call.op == Op::all_reduce);
    else reduce_parts(call, begin, call.op == Op::all_reduce);
  } else {
    const bool direct = call.op == Op::broadcast ? DataPath(call_data_[call.root].path) != DataPath::bounce : all_visible();
    if (direct && call.op != Op::reduce) read_others(call);
    else if (call.op == Op::broadcast) stream(call);
    else exchange_slices(call);
  }
  Usage &u = usage[int(call.op)];
  u.calls++, u.bytes += bytes, u.ns += monotonic_ns() - start_ns_;
}

void Collective::small_call(const Call &call, std::uint32_t sequence) {
  const int n = size();
  const std::size_t block = call.count * size_of(call.type);
  auto slot = [&](int rank) { return segment_.slot(members_[rank], sequence); };
  char *out = static_cast<char *>(call.out);
  const bool reduces = call.op == Op::all_reduce || call.op == Op::reduce_scatter || (call.op == Op::reduce && call.root == me_);
  if (call.op == Op::all_reduce && block > full_reduce_bytes) {
    reduce_slots(call, sequence);
  } else if (reduces) {
    for (int r = 0; r < n; ++r) from_[r] = slot(r) + (call.op == Op::reduce_scatter ? me_ * block : 0);
    loops_.reduce(out, from_.data(), n, call.count, call.type, call.how);
  } else if (call.op == Op::all_gather) {
    for (int r = 0; r < n; ++r) std::memcpy(out + r * block, slot(r), block);
  } else if (call.op == Op::all_to_all) {
    for (int r = 0; r < n; ++r) std::memcpy(out + r * block, slot(r) + me_ * block, block);
  } else if (call.op == Op::broadcast && call.root != me_) {
    std::memcpy(out, slot(call.root), block);
  }
}

// If all ranks read all of the data, they load n² times its cache lines. Here rank p reduces part p, and after a second
// synchronization all ranks read the sums: 2 · n times the lines. The sum may replace the part in the slot of this rank,
// because no other rank reads that part.
void Collective::reduce_slots(const Call &call, std::uint32_t sequence) {
  const int n = size();
  const std::size_t one = size_of(call.type);
  const std::vector<std::uint64_t> begin = parts(call);
  char *out = static_cast<char *>(call.out);
  auto position = [&](int rank, int part) { return segment_.slot(members_[rank], sequence) + begin[part] * one; };
  if (const std::uint64_t m = begin[me_ + 1] - begin[me_]) {
    for (int r = 0; r < n; ++r) from_[r] = position(r, me_);
    loops_.reduce(position(me_, me_), from_.data(), n, m, call.type, call.how);
  }
  advance_and_wait();
  for (int distance = 0; distance < n; ++distance) {
    const int p = (me_ + distance) % n;
    if (const std::uint64_t m = begin[p + 1] - begin[p]) std::memcpy(out + begin[p] * one, position(p, p), m * one);
  }
}

// Rank p reduces part p. The data for other ranks goes through the area of this rank, slice by slice: while the others
// reduce slice k, this rank fills slice k + 1.
void Collective::reduce_parts(const Call &call, const std::vector<std::uint64_t> &begin, bool share) {
  const int n = size();
  const std::size_t one = size_of(call.type);
  const std::size_t cap = std::min<std::size_t>(slice, kArea / (2 * (n + 1))) / 64 * 64;
  const std::uint64_t step = cap / one;
  std::uint64_t longest = 0;
  for (int p = 0; p < n; ++p) longest = std::max(longest, begin[p + 1] - begin[p]);
  const std::uint64_t rounds = (longest + step - 1) / step;
  const char *data = static_cast<const char *>(call.in);
  char *out = static_cast<char *>(call.out);
  auto position = [&](int rank, std::uint64_t k, int part) { // part n: the result
    return segment_.area(members_[rank]) + ((k % 2) * (n + 1) + part) * cap;
  };
  auto length = [&](int p, std::uint64_t k) -> std::uint64_t {
    const std::uint64_t from = begin[p] + k * step;
    return from < begin[p + 1] ? std::min(step, begin[p + 1] - from) : 0;
  };
  auto fill_slice = [&](std::uint64_t k) {
    for (int distance = 1; distance < n; ++distance) {
      const int p = (me_ + distance) % n;
      if (const std::uint64_t m = length(p, k)) std::memcpy(position(me_, k, p), data + (begin[p] + k * step) * one, m * one);
    }
  };
  std::vector<const void *> from(n);
  fill_slice(0);
  advance_and_wait();
  for (std::uint64_t k = 0; k < rounds; ++k) {
    if (const std::uint64_t m = length(me_, k)) {
      const std::uint64_t at = begin[me_] + k * step;
      for (int r = 0; r < n; ++r) from[r] = r == me_ ? data + at * one : position(r, k, me_);
      char *to = share ? out + at * one : out + k * step * one;
      loops_.reduce(to, from.data(), n, m, call.type, call.how);
      if (share) std::memcpy(position(me_, k, n), to, m * one);
    }
    if (k + 1 < rounds) fill_slice(k + 1);
    if (share || k + 1 < rounds) advance_and_wait();
    for (int distance = 1; share && distance < n; ++distance) {
      const int p = (me_ + distance) % n;
      if (const std::uint64_t m = length(p, k)) std::memcpy(out + (begin[p] + k * step) * one, position(p, k, n), m * one);
    }
  }
}

// The same where all data can be read directly. The results are written into registered buffers.
void Collective::reduce_visible(const Call &call, const std::vector<std::uint64_t> &begin, bool share) {
  const int n = size();
  const std::size_t one = size_of(call.type);
  const std::uint64_t step = kLook / one;
  char *out = static_cast<char *>(call.out);
  const char *data = static_cast<const char *>(call.in);
  bool push = share;
  for (const CallData &h : call_data_) push = push && DataPath(h.path) == DataPath::registered;
  scratch_.resize(std::max(scratch_.size(), std::size_t(n) * kLook));
  std::vector<const void *> from(n);
  for (std::uint64_t at = begin[me_]; at < begin[me_ + 1]; at += step) {
    const std::uint64_t m = std::min(step, begin[me_ + 1] - at);
    for (int r = 0; r < n; ++r) {
      if (r == me_) from[r] = data + at * one;
      else if (const char *remote = visible_data(r, at * one)) from[r] = remote;
      else {
        read(r, at * one, scratch_.data() + r * kLook, m * one);
        from[r] = scratch_.data() + r * kLook;
      }
    }
    char *to = share ? out + at * one : out + (at - begin[me_]) * one;
    loops_.reduce(to, from.data(), n, m, call.type, call.how);
    for (int distance = 1; push && distance < n; ++distance) {
      const int r = (me_ + distance) % n;
      std::memcpy(const_cast<char *>(visible_data(r, at * one)), to, m * one);
    }
  }
  advance_and_wait();
  if (!share || push) return;
  for (int distance = 1; distance < n; ++distance) {
    const int p = (me_ + distance) % n;
    if (begin[p + 1] > begin[p]) read(p, begin[p] * one, out + begin[p] * one, (begin[p + 1] - begin[p]) * one);
  }
  advance_and_wait();
}

// Through the areas, slice by slice: a rank that has filled slice k reads slice k - kLead of the others, so it does not wait
// for a rank that is slightly behind. A slice fits the cache of the rank that fills it until the others have read it.
// Progress counts filled slices. Before a rank fills slice k, all ranks have filled k - 1 - kLead (it read that one last),
// so they have read k - 2 - 2 * kLead: with that many buffers the buffer of slice k is free.
void Collective::exchange_slices(const Call &call) {
  constexpr std::uint64_t slots = 2 * kLead + 2;
  const int n = size(), lanes = call.op == Op::all_to_all ? n : 1;
  const std::size_t one = size_of(call.type), block = call.count * one;
  const std::size_t lane = std::min<std::size_t>(slice, kArea / slots / lanes) / 64 * 64;
  const std::uint64_t step = lane / one, slices = (call.count + step - 1) / step;
  const std::uint32_t base = progress_;
  const char *data = static_cast<const char *>(call.in);
  char *out = static_cast<char *>(call.out);
  Line &own_line = segment_.line(members_[me_]);
  auto position = [&](int rank, std::uint64_t k, int part) {
    return segment_.area(members_[rank]) + ((k % slots) * lanes + part) * lane;
  };
  auto bytes = [&](std::uint64_t k) { return std::min(step, call.count - k * step) * one; };
  auto fill = [&](std::uint64_t k) {
    const std::size_t at = k * step * one, m = bytes(k);
    if (call.op == Op::all_to_all) {
      for (int p = 0; p < n; ++p)
        if (p != me_) std::memcpy(position(me_, k, p), data + p * block + at, m);
      if (out != data) std::memcpy(out + me_ * block + at, data + me_ * block + at, m);
    } else if (call.op == Op::all_gather) {
      std::memcpy(position(me_, k, 0), data + at, m);
      if (out + me_ * block != data) std::memcpy(out + me_ * block + at, data + at, m); // while it is in the cache
    } else if (call.root != me_) {
      std::memcpy(position(me_, k, 0), data + at, m);
    }
  };
  std::vector<const void *> from(n);
  auto take = [&](std::uint64_t k) {
    const std::size_t at = k * step * one, m = bytes(k);
    if (call.op != Op::reduce) {
      for (int distance = 1; distance < n; ++distance) {
        const int r = (me_ + distance) % n;
        std::memcpy(out + r * block + at, position(r, k, call.op == Op::all_to_all ? me_ : 0), m);
      }
    } else if (call.root == me_) {
      for (int r = 0; r < n; ++r) from[r] = r == me_ ? data + at : position(r, k, 0);
      loops_.reduce(out + at, from.data(), n, m / one, call.type, call.how);
    }
  };
  for (std::uint64_t k = 0; k < slices + kLead; ++k) {
    if (k < slices) {
      fill(k);
      Waiter::raise(own_line.progress, own_line.waiters, base + std::uint32_t(k) + 1);
    }
    if (k < kLead) continue;
    progress_ = base + std::uint32_t(k - kLead) + 1;
    sync();
    take(k - kLead);
  }
}

// A broadcast through the area of the root, a ring of slices. The root is at most kAhead slices ahead of the slowest rank.
// Progress counts slices: filled ones for the root, read ones for the other ranks.
void Collective::stream(const Call &call) {
  const std::size_t block = call.count * size_of(call.type), step = std::min<std::size_t>(slice, kArea / kAhead);
  const std::uint32_t base = progress_, slices = std::uint32_t((block + step - 1) / step);
  Line &own_line = segment_.line(members_[me_]), &roots = segment_.line(members_[call.root]);
  char *data = static_cast<char *>(call.out);
  for (std::uint32_t k = 0; k < slices; ++k) {
    const std::size_t at = k * step, m = std::min(step, block - at);
    char *position = segment_.area(members_[call.root]) + (k % kAhead) * step;
    if (me_ == call.root) {
      progress_ = base + k - kAhead + 1;
      if (k >= kAhead) sync();
      std::memcpy(position, data + at, m);
    } else {
      waiter.until(roots.progress, roots.waiters, base + k + 1, members_[call.root]);
      std::memcpy(data + at, position, m);
    }
    Waiter::raise(own_line.progress, own_line.waiters, base + k + 1);
  }
  progress_ = base + slices;
}

void Collective::read_others(const Call &call) {
  const int n = size();
  const std::size_t block = call.count * size_of(call.type);
  const char *data = static_cast<const char *>(call.in);
  char *out = static_cast<char *>(call.out);
  if (call.op == Op::broadcast) {
    if (call.root != me_) read(call.root, 0, out, block);
  } else {
    const std::size_t own_line = call.op == Op::all_to_all ? me_ * block : 0;
    for (int distance = 1; distance < n; ++distance) {
      const int r = (me_ + distance) % n;
      read(r, own_line, out + r * block, block);
    }
    if (out + me_ * block != data + own_line) std::memcpy(out + me_ * block, data + own_line, block);
  }
  advance_and_wait();
}

} // namespace ridgeline
