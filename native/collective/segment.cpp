#include "collective/segment.hpp"

#include <algorithm>
#include <climits>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <string>

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ridgeline {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kShortSpins = 400;           // some microseconds
constexpr int kSpins = 4000;           // some tens of microseconds: as long as a call usually takes
constexpr int kCrowdedSpins = 30, kYields = 60;
constexpr std::int64_t kCheck = 20'000'000; // ns between two checks that the other rank is alive

std::size_t round_to_page(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory"); // `yield` is no pause at all on most ARM cores
#endif
}

inline bool reached(std::uint32_t now, std::uint32_t value) { return std::int32_t(now - value) >= 0; }

long futex(std::atomic<std::uint32_t> &word, int what, std::uint32_t value, const timespec *timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t *>(&word), what, value, timeout, nullptr, 0);
}

bool is_stopped(int pid) { // SIGSTOP or a debugger
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(") "); // the name before may contain anything
  return end != std::string::npos && end + 2 < text.size() && (text[end + 2] == 'T' || text[end + 2] == 't');
}

} // namespace

std::int64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

std::size_t Segment::context_bytes(int world) {
  const std::size_t n = world, pairs = kChannelSets * n * n;
  return round_to_page(n * (sizeof(Line) + sizeof(FirstFailure))) + n * (2 * kSlot + kArea) + round_to_page(pairs * sizeof(Channel)) + pairs * kChannelMessages * kFragment +
         round_to_page(n * n * sizeof(Mail));
}

std::size_t Segment::bytes(int world, std::size_t arena_bytes) {
  return kContexts * context_bytes(world) + std::size_t(world) * arena_bytes;
}

Segment::Segment(int fd, int world, int context, std::size_t arena_bytes)
    : world_(world), arena_bytes_(arena_bytes), bytes_(bytes(world, arena_bytes)) {
  if (context < 0 || context >= kContexts) throw std::invalid_argument("the context is out of range");
  void *at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED)
    throw std::runtime_error("the ranks' shared memory (" + std::to_string(bytes_ >> 20) + " MiB of addresses) cannot be mapped");
  madvise(at, bytes_, MADV_HUGEPAGE);
  base_ = static_cast<char *>(at);
  const std::size_t n = world, pairs = kChannelSets * n * n;
  context_ = base_ + std::size_t(context) * context_bytes(world);
  slots_ = context_ + round_to_page(n * (sizeof(Line) + sizeof(FirstFailure)));
  areas_ = slots_ + n * 2 * kSlot;
  channels_ = reinterpret_cast<Channel *>(areas_ + n * kArea);
  fragments_ = areas_ + n * kArea + round_to_page(pairs * sizeof(Channel));
  mails_ = reinterpret_cast<Mail *>(fragments_ + pairs * kChannelMessages * kFragment);
  arenas_ = base_ + kContexts * context_bytes(world);
}

Segment::~Segment() { munmap(base_, bytes_); }

Waiter::Waiter(const Segment &segment, const std::vector<int> &members, int me, std::vector<int> pids, std::vector<int> pidfds,
               bool are_crowded)
    : waited_ns(pidfds.size()), crowded(are_crowded), segment_(segment), me_(members.at(me)), first_member_(members.at(0)),
      pids_(std::move(pids)), pidfds_(std::move(pidfds)) {}

Waiter::~Waiter() {
  for (int fd : pidfds_)
    if (fd >= 0) close(fd);
}

bool Waiter::alive(int rank) const {
  if (pidfds_[rank] < 0) return true;
  pollfd look{pidfds_[rank], POLLIN, 0};
  return poll(&look, 1, 0) <= 0;
}

// This rank waited too long for `rank`, which may itself wait for another rank: the last rank of the chain is the cause.
// If the chain is a circle (two ranks that send to each other), no rank is, unless its process is stopped.
int Waiter::find_cause(int rank) const {
  std::vector<int> chain;
  for (int r = rank; r != me_ && std::find(chain.begin(), chain.end(), r) == chain.end();) {
    chain.push_back(r);
    const std::uint32_t rank_plus_one = segment_.line(r).waits_for.load(std::memory_order_acquire);
    if (is_stopped(pids_[r]) || !rank_plus_one) return r;
    r = int(rank_plus_one) - 1;
  }
  return rank;
}

void Waiter::raise(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value) {
  word.store(value, std::memory_order_seq_cst);
  if (waiters.load(std::memory_order_seq_cst)) futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

void Waiter::until(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value, int rank) {
  if (reached(word.load(std::memory_order_acquire), value)) return;
  const std::int64_t start_ns = monotonic_ns();
  bool has_reached = false;
  auto spin = [&](int spins) {
    for (int k = 0; k < spins && !has_reached; ++k) {
      relax();
      has_reached = reached(word.load(std::memory_order_acquire), value);
    }
  };
  spin(crowded ? kCrowdedSpins : kShortSpins);
  if (!has_reached && takes_long) takes_long();
  if (!crowded) spin(kSpins);
  for (int k = 0; crowded && k < kYields && !has_reached; ++k) {
    sched_yield();
    has_reached = reached(word.load(std::memory_order_acquire), value);
  }
  if (!has_reached) sleep_until(word, waiters, value, rank);
  waited_ns[rank] += monotonic_ns() - start_ns;
}

bool Waiter::all(const std::vector<int> &ranks, int me, std::uint32_t value) {
  const std::size_t n = ranks.size();
  std::int64_t start_ns = 0;
  const int polls = crowded ? 1 : int(kShortSpins / n) + 1;
  for (int k = 0, last = me; k < polls; ++k) {
    bool has_reached = true;
    // Each rank starts with its successor, so that not all ranks load the same line at once. The loads are independent.
    for (std::size_t distance = 1; distance < n; ++distance) {
      const int r = ranks[(std::size_t(me) + distance) % n];
      if (!reached(segment_.line(r).progress.load(std::memory_order_relaxed), value)) has_reached = false, last = r;
    }
    if (has_reached) {
      std::atomic_thread_fence(std::memory_order_acquire);
      if (start_ns) waited_ns[last] += monotonic_ns() - start_ns;
      return true;
    }
    if (!start_ns) start_ns = monotonic_ns();
    relax();
  }
  return false;
}

void Waiter::sleep_until(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value, int rank) {
  waiters.fetch_add(1, std::memory_order_seq_cst);
  struct Leave {
    std::atomic<std::uint32_t> &count;
    ~Leave() { count.fetch_sub(1); }
  } leave{waiters};
  std::atomic<std::uint32_t> &waits_for = segment_.line(me_).waits_for;
  waits_for.store(std::uint32_t(rank) + 1, std::memory_order_release);
  auto has_arrived = [&](std::uint32_t now) {
    if (!reached(now, value)) return false;
    waits_for.store(0, std::memory_order_release);
    return true;
  };
  for (;;) {
    const std::uint32_t now = word.load(std::memory_order_seq_cst);
    if (has_arrived(now)) return;
    const std::int64_t left = deadline - monotonic_ns();
    const std::int64_t nap = left < kCheck ? (left > 0 ? left : 0) : kCheck;
    const timespec t{time_t(nap / 1'000'000'000), long(nap % 1'000'000'000)};
    futex(word, FUTEX_WAIT, now, &t);
    if (has_arrived(word.load(std::memory_order_seq_cst))) return;
    if (segment_.first_failure(first_member_).state.load()) throw Failure{Fault::failed_before, rank};
    // The rank may have written the word before it ended: read the word once more.
    if (!alive(rank) && !reached(word.load(std::memory_order_seq_cst), value)) throw Failure{Fault::dead, rank};
    if (monotonic_ns() >= deadline) throw Failure{Fault::late, find_cause(rank)};
    if (interrupted && interrupted()) throw Failure{Fault::interrupted, me_};
  }
}

} // namespace ridgeline
