// Data where everyone can see it: slots for small calls, areas slice by slice, or the callers' own buffers.
#include "collective/collective.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <sys/uio.h>

namespace ridgeline {
namespace {

constexpr std::uint64_t kLead = 1;      // slices a rank fills before it takes the others' first one
constexpr std::uint32_t kAhead = 4;     // slices a root may be ahead of those who take them
constexpr std::size_t kLook = 64 << 10; // bytes of others' buffers at a time: they stay in the nearest caches

std::size_t given(const Call &call, int ranks) {
  const std::size_t block = call.count * size_of(call.type);
  return call.op == Op::reduce_scatter || call.op == Op::all_to_all ? block * ranks : block;
}

} // namespace

Collective::Collective(int fd, int world, int context, std::size_t arena_bytes, std::vector<int> members, int me,
                       const std::vector<int> &pids, std::vector<int> pidfds, bool crowded)
    : waiter(segment_, std::move(pidfds), crowded), segment_(fd, world, context, arena_bytes), members_(std::move(members)),
      pids_(pids), me_(me), where_(members_.size()), from_(members_.size()), loops_(reduce_loops(chosen_isa())) {
  if (me_ < 0 || me_ >= size() || int(pids_.size()) != world) throw std::invalid_argument("ranks do not fit the world");
  for (int rank : members_)
    if (rank < 0 || rank >= world) throw std::invalid_argument("there is no such rank");
  // A context may have been another communicator's: all members see the same counts, for they stopped together.
  progress_ = segment_.line(members_[me_]).progress.load();
}

void Collective::give_up(int rank) {
  std::uint32_t nobody = 0;
  segment_.given_up().compare_exchange_strong(nobody, std::uint32_t(rank) + 1);
}

std::pair<Called, Where> Collective::last_said(int rank) const {
  const Line &line = segment_.line(members_[rank]);
  return said(rank, line.where[0].stamp > line.where[1].stamp ? 0 : 1);
}

void Collective::sync() {
  if (size() > 2 && waiter.all(members_, me_, progress_)) return;
  for (int rank = 0; rank < size(); ++rank)
    if (rank != me_) {
      Line &line = segment_.line(members_[rank]);
      waiter.until(line.progress, line.waiters, progress_, members_[rank]);
    }
}

void Collective::together() {
  Line &mine = segment_.line(members_[me_]);
  Waiter::raise(mine.progress, mine.waiters, ++progress_);
  sync();
}

// Say what this rank calls, with small data beside it, and compare when all have come.
std::uint32_t Collective::arrive(const Call &call, std::uint32_t algorithm, const void *payload, std::size_t bytes) {
  const std::uint32_t sequence = sequence_++;
  Line &mine = segment_.line(members_[me_]);
  if (bytes) std::memcpy(segment_.slot(members_[me_], sequence), payload, bytes);
  Where where{sequence, std::uint32_t(Way::bounce), 0, began_};
  const char *data = static_cast<const char *>(call.in);
  const std::size_t all = given(call, size());
  const bool adds = call.op == Op::all_reduce || call.op == Op::reduce_scatter;
  if (data >= arena() && data + all <= arena() + segment_.arena_bytes()) {
    where.way = std::uint32_t(Way::registered);
    where.address = data - arena();
  } else if (foreign && all >= (adds ? foreign_from : foreign_moves_from)) {
    where.way = std::uint32_t(Way::foreign);
    where.address = reinterpret_cast<std::uint64_t>(data);
  }
  mine.where[sequence % 2] = where;
  static_assert(sizeof(Called) == 16, "compared byte by byte");
  const Called called{std::uint8_t(call.op), std::uint8_t(call.type), std::uint8_t(call.how), std::uint8_t(algorithm),
                      call.root, call.count};
  mine.called[sequence % 2] = called;
  together();
  for (int rank = 0; rank < size(); ++rank) {
    if (std::memcmp(&segment_.line(members_[rank]).called[sequence % 2], &called, sizeof called)) {
      disputed_ = sequence;
      throw Trouble{Fault::mismatch, members_[rank]};
    }
  }
  return sequence;
}

// Where each rank's part of the data begins; parts begin on a cache line.
std::vector<std::uint64_t> Collective::parts(const Call &call) const {
  const std::uint64_t n = size(), line = std::max<std::uint64_t>(1, 64 / size_of(call.type));
  std::vector<std::uint64_t> begin(n + 1);
  for (std::uint64_t p = 0; p <= n; ++p)
    begin[p] = call.op == Op::reduce_scatter ? p * call.count : p == n ? call.count : (call.count / line * p / n) * line;
  return begin;
}

const char *Collective::seen(int rank, std::uint64_t offset) const {
  return Way(where_[rank].way) == Way::registered ? segment_.arena(members_[rank]) + where_[rank].address + offset : nullptr;
}

bool Collective::all_seen() const {
  return std::all_of(where_.begin(), where_.end(), [](const Where &h) { return Way(h.way) != Way::bounce; });
}

bool Collective::read(int rank, std::uint64_t offset, void *to, std::size_t bytes) {
  if (const char *from = seen(rank, offset)) {
    std::memcpy(to, from, bytes);
    return true;
  }
  char *at = static_cast<char *>(to);
  std::uint64_t from = where_[rank].address + offset;
  while (bytes) {
    iovec here{at, bytes}, there{reinterpret_cast<void *>(from), bytes};
    const ssize_t got = process_vm_readv(pids_[members_[rank]], &here, 1, &there, 1, 0);
    if (got <= 0) {
      if (got < 0 && errno == EINTR) continue;
      throw Trouble{errno == ESRCH ? Fault::dead : Fault::refused, members_[rank]};
    }
    at += got, from += got, bytes -= got;
  }
  return true;
}

bool Collective::may_look(int rank, std::uint64_t address, std::uint64_t expected) {
  std::uint64_t found = 0;
  iovec here{&found, sizeof found}, there{reinterpret_cast<void *>(address), sizeof found};
  const ssize_t got = process_vm_readv(pids_[members_[rank]], &here, 1, &there, 1, 0);
  return got == ssize_t(sizeof found) && found == expected;
}

void Collective::run(const Call &given_call) {
  Call call = given_call;
  const int n = size();
  const std::size_t block = call.count * size_of(call.type);
  began_ = monotonic_ns();
  waiter.deadline = began_ + call.timeout_ns;
  if (call.op == Op::all_reduce && call.in != call.out && block) {
    std::memcpy(call.out, call.in, block);
    call.in = call.out;
  }
  const std::size_t bytes = given(call, n);
  const bool fits = bytes <= std::min<std::uint64_t>(small, kSlot);
  const bool gives = fits && (call.op != Op::broadcast || call.root == me_);
  const std::uint32_t sequence = arrive(call, 0, call.in, gives ? bytes : 0);
  for (int rank = 0; !fits && rank < n; ++rank) where_[rank] = segment_.line(members_[rank]).where[sequence % 2];
  if (call.count == 0 || call.op == Op::barrier) {
    // arriving was all
  } else if (fits) {
    small_call(call, sequence);
  } else if (call.op == Op::all_reduce || call.op == Op::reduce_scatter) {
    const std::vector<std::uint64_t> begin = parts(call);
    if (all_seen()) reduce_seen(call, begin, call.op == Op::all_reduce);
    else reduce_parts(call, begin, call.op == Op::all_reduce);
  } else {
    const bool look = call.op == Op::broadcast ? Way(where_[call.root].way) != Way::bounce : all_seen();
    if (look && call.op != Op::reduce) read_round(call);
    else if (call.op == Op::broadcast) stream(call);
    else hand_round(call);
  }
  Usage &u = usage[int(call.op)];
  u.calls++, u.bytes += bytes, u.ns += monotonic_ns() - began_;
}

void Collective::small_call(const Call &call, std::uint32_t sequence) {
  const int n = size();
  const std::size_t block = call.count * size_of(call.type);
  auto slot = [&](int rank) { return segment_.slot(members_[rank], sequence); };
  char *out = static_cast<char *>(call.out);
  const bool reduces = call.op == Op::all_reduce || call.op == Op::reduce_scatter || (call.op == Op::reduce && call.root == me_);
  if (call.op == Op::all_reduce && block > whole) {
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

// Many ranks that all read all of the small data ask for n² times its cache lines. Here part p is rank p's to add, and a
// second meeting hands the sums round: 2 · n times as many lines. The sum may lie where the part lay in this rank's own
// slot, for nobody else reads that part of it before.
void Collective::reduce_slots(const Call &call, std::uint32_t sequence) {
  const int n = size();
  const std::size_t one = size_of(call.type);
  const std::vector<std::uint64_t> begin = parts(call);
  char *out = static_cast<char *>(call.out);
  auto lies = [&](int rank, int part) { return segment_.slot(members_[rank], sequence) + begin[part] * one; };
  if (const std::uint64_t m = begin[me_ + 1] - begin[me_]) {
    for (int r = 0; r < n; ++r) from_[r] = lies(r, me_);
    loops_.reduce(lies(me_, me_), from_.data(), n, m, call.type, call.how);
  }
  together();
  for (int away = 0; away < n; ++away) {
    const int p = (me_ + away) % n;
    if (const std::uint64_t m = begin[p + 1] - begin[p]) std::memcpy(out + begin[p] * one, lies(p, p), m * one);
  }
}

// Part p of the data is rank p's to add. What others need goes through this rank's area, slice by slice; while the
// others add slice k, slice k + 1 is laid out.
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
  auto lies = [&](int rank, std::uint64_t k, int part) { // part n: the answer
    return segment_.area(members_[rank]) + ((k % 2) * (n + 1) + part) * cap;
  };
  auto length = [&](int p, std::uint64_t k) -> std::uint64_t {
    const std::uint64_t from = begin[p] + k * step;
    return from < begin[p + 1] ? std::min(step, begin[p + 1] - from) : 0;
  };
  auto lay_out = [&](std::uint64_t k) {
    for (int away = 1; away < n; ++away) {
      const int p = (me_ + away) % n;
      if (const std::uint64_t m = length(p, k)) std::memcpy(lies(me_, k, p), data + (begin[p] + k * step) * one, m * one);
    }
  };
  std::vector<const void *> from(n);
  lay_out(0);
  together();
  for (std::uint64_t k = 0; k < rounds; ++k) {
    if (const std::uint64_t m = length(me_, k)) {
      const std::uint64_t at = begin[me_] + k * step;
      for (int r = 0; r < n; ++r) from[r] = r == me_ ? data + at * one : lies(r, k, me_);
      char *to = share ? out + at * one : out + k * step * one;
      loops_.reduce(to, from.data(), n, m, call.type, call.how);
      if (share) std::memcpy(lies(me_, k, n), to, m * one);
    }
    if (k + 1 < rounds) lay_out(k + 1);
    if (share || k + 1 < rounds) together();
    for (int away = 1; share && away < n; ++away) {
      const int p = (me_ + away) % n;
      if (const std::uint64_t m = length(p, k)) std::memcpy(out + (begin[p] + k * step) * one, lies(p, k, n), m * one);
    }
  }
}

// The same where everyone's data can be looked at. Registered buffers get the answer written into them.
void Collective::reduce_seen(const Call &call, const std::vector<std::uint64_t> &begin, bool share) {
  const int n = size();
  const std::size_t one = size_of(call.type);
  const std::uint64_t step = kLook / one;
  char *out = static_cast<char *>(call.out);
  const char *data = static_cast<const char *>(call.in);
  bool push = share;
  for (const Where &h : where_) push = push && Way(h.way) == Way::registered;
  scratch_.resize(std::max(scratch_.size(), std::size_t(n) * kLook));
  std::vector<const void *> from(n);
  for (std::uint64_t at = begin[me_]; at < begin[me_ + 1]; at += step) {
    const std::uint64_t m = std::min(step, begin[me_ + 1] - at);
    for (int r = 0; r < n; ++r) {
      if (r == me_) from[r] = data + at * one;
      else if (const char *there = seen(r, at * one)) from[r] = there;
      else {
        read(r, at * one, scratch_.data() + r * kLook, m * one);
        from[r] = scratch_.data() + r * kLook;
      }
    }
    char *to = share ? out + at * one : out + (at - begin[me_]) * one;
    loops_.reduce(to, from.data(), n, m, call.type, call.how);
    for (int away = 1; push && away < n; ++away) {
      const int r = (me_ + away) % n;
      std::memcpy(const_cast<char *>(seen(r, at * one)), to, m * one);
    }
  }
  together();
  if (!share || push) return;
  for (int away = 1; away < n; ++away) {
    const int p = (me_ + away) % n;
    if (begin[p + 1] > begin[p]) read(p, begin[p] * one, out + begin[p] * one, (begin[p + 1] - begin[p]) * one);
  }
  together();
}

// Through the areas, slice by slice: whoever has filled slice k takes the others' slice k - kLead, so nobody waits for
// one that is a little behind. A slice is small enough to stay in the caches of the one that fills it until the others
// have it. Progress counts filled slices. Before slice k is filled, all are known to have filled k - 1 - kLead (that one
// was taken last), so they have taken k - 2 - 2 * kLead before: with that many places the one for k is free.
void Collective::hand_round(const Call &call) {
  constexpr std::uint64_t places = 2 * kLead + 2;
  const int n = size(), lanes = call.op == Op::all_to_all ? n : 1;
  const std::size_t one = size_of(call.type), block = call.count * one;
  const std::size_t lane = std::min<std::size_t>(slice, kArea / places / lanes) / 64 * 64;
  const std::uint64_t step = lane / one, slices = (call.count + step - 1) / step;
  const std::uint32_t base = progress_;
  const char *data = static_cast<const char *>(call.in);
  char *out = static_cast<char *>(call.out);
  Line &mine = segment_.line(members_[me_]);
  auto lies = [&](int rank, std::uint64_t k, int part) {
    return segment_.area(members_[rank]) + ((k % places) * lanes + part) * lane;
  };
  auto bytes = [&](std::uint64_t k) { return std::min(step, call.count - k * step) * one; };
  auto fill = [&](std::uint64_t k) {
    const std::size_t at = k * step * one, m = bytes(k);
    if (call.op == Op::all_to_all) {
      for (int p = 0; p < n; ++p)
        if (p != me_) std::memcpy(lies(me_, k, p), data + p * block + at, m);
      std::memcpy(out + me_ * block + at, data + me_ * block + at, m);
    } else if (call.op == Op::all_gather) {
      std::memcpy(lies(me_, k, 0), data + at, m);
      if (out + me_ * block != data) std::memcpy(out + me_ * block + at, data + at, m); // while it is near
    } else if (call.root != me_) {
      std::memcpy(lies(me_, k, 0), data + at, m);
    }
  };
  std::vector<const void *> from(n);
  auto take = [&](std::uint64_t k) {
    const std::size_t at = k * step * one, m = bytes(k);
    if (call.op != Op::reduce) {
      for (int away = 1; away < n; ++away) {
        const int r = (me_ + away) % n;
        std::memcpy(out + r * block + at, lies(r, k, call.op == Op::all_to_all ? me_ : 0), m);
      }
    } else if (call.root == me_) {
      for (int r = 0; r < n; ++r) from[r] = r == me_ ? data + at : lies(r, k, 0);
      loops_.reduce(out + at, from.data(), n, m / one, call.type, call.how);
    }
  };
  for (std::uint64_t k = 0; k < slices + kLead; ++k) {
    if (k < slices) {
      fill(k);
      Waiter::raise(mine.progress, mine.waiters, base + std::uint32_t(k) + 1);
    }
    if (k < kLead) continue;
    progress_ = base + std::uint32_t(k - kLead) + 1;
    sync();
    take(k - kLead);
  }
}

// A broadcast through the root's area, a ring of slices: the root is some slices ahead of the slowest, and everyone
// else follows at a pace of its own. Progress counts slices: those the root has filled, those another has taken.
void Collective::stream(const Call &call) {
  const std::size_t block = call.count * size_of(call.type), step = std::min<std::size_t>(slice, kArea / kAhead);
  const std::uint32_t base = progress_, slices = std::uint32_t((block + step - 1) / step);
  Line &mine = segment_.line(members_[me_]), &roots = segment_.line(members_[call.root]);
  char *data = static_cast<char *>(call.out);
  for (std::uint32_t k = 0; k < slices; ++k) {
    const std::size_t at = k * step, m = std::min(step, block - at);
    char *lies = segment_.area(members_[call.root]) + (k % kAhead) * step;
    if (me_ == call.root) {
      progress_ = base + k - kAhead + 1;
      if (k >= kAhead) sync();
      std::memcpy(lies, data + at, m);
    } else {
      waiter.until(roots.progress, roots.waiters, base + k + 1, members_[call.root]);
      std::memcpy(data + at, lies, m);
    }
    Waiter::raise(mine.progress, mine.waiters, base + k + 1);
  }
  progress_ = base + slices;
}

void Collective::read_round(const Call &call) {
  const int n = size();
  const std::size_t block = call.count * size_of(call.type);
  const char *data = static_cast<const char *>(call.in);
  char *out = static_cast<char *>(call.out);
  if (call.op == Op::broadcast) {
    if (call.root != me_) read(call.root, 0, out, block);
  } else {
    const std::size_t mine = call.op == Op::all_to_all ? me_ * block : 0;
    for (int away = 1; away < n; ++away) {
      const int r = (me_ + away) % n;
      read(r, mine, out + r * block, block);
    }
    if (out + me_ * block != data + mine) std::memcpy(out + me_ * block, data + mine, block);
  }
  together();
}

} // namespace ridgeline
