#include "memory/bandwidth.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <sched.h>
#include <sys/mman.h>

namespace ridgeline {

RIDGELINE_LOOPS(BandwidthLoops, compiled_bandwidth_loops)

BandwidthLoops bandwidth_loops(Isa isa) { return select_compiled_bandwidth_loops(isa); }

Mix parse_mix(const std::string &word) {
  if (word == "read") return Mix::read;
  if (word == "write") return Mix::write;
  if (word == "copy") return Mix::copy;
  if (word == "triad") return Mix::triad;
  throw std::invalid_argument("there is no access mix '" + word + "'; there are: read, write, copy, triad");
}

namespace {

// Fresh anonymous memory, in huge pages where the kernel has them, so that page-table walks do not disturb the measurement.
class Memory {
public:
  explicit Memory(std::size_t bytes) : bytes_(bytes ? bytes : 1) {
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    madvise(base_, bytes_, MADV_HUGEPAGE);
  }
  ~Memory() { munmap(base_, bytes_); }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  char *data() const { return static_cast<char *>(base_); }

private:
  void *base_;
  std::size_t bytes_;
};

// A sense-reversing barrier that spins, then yields: ranks may outnumber cores.
class Barrier {
public:
  explicit Barrier(int parties) : parties_(parties) {}
  void wait() {
    int round = round_.load();
    if (arrived_.fetch_add(1) + 1 == parties_) {
      arrived_.store(0);
      round_.fetch_add(1);
    } else {
      for (int spins = 0; round_.load() == round; ++spins)
        if (spins > 1000) std::this_thread::yield();
    }
  }

private:
  const int parties_;
  std::atomic<int> arrived_{0}, round_{0};
};

// Binds the calling thread to `cpu`; false if that fails. The set is allocated, because some machines have more CPUs than
// a cpu_set_t holds.
bool pin(int cpu) {
  if (cpu < 0) return true;
  if (cpu >= 1 << 20) return false; // no kernel supports that many
  const std::size_t size = CPU_ALLOC_SIZE(cpu + 1);
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t *)> set(CPU_ALLOC(cpu + 1), [](cpu_set_t *s) { CPU_FREE(s); });
  if (!set) return false;
  CPU_ZERO_S(size, set.get());
  CPU_SET_S(cpu, size, set.get());
  return sched_setaffinity(0, size, set.get()) == 0;
}

void run_mix(Mix mix, const BandwidthLoops &loops, char *base, std::size_t bytes, bool streaming,
          std::atomic<std::uint64_t> &sink) {
  // Parts begin at multiples of 64 bytes, so that every buffer is aligned for streaming stores.
  const std::size_t half = bytes / 2 / 64 * 64, third = bytes / 3 / 64 * 64;
  switch (mix) {
  case Mix::read: sink.fetch_xor(loops.read(base, bytes)); break;
  case Mix::write: loops.write(base, 0x0123456789abcdef, bytes, streaming); break;
  case Mix::copy: loops.copy(base + half, base, half, streaming); break;
  case Mix::triad:
    loops.triad(reinterpret_cast<double *>(base), reinterpret_cast<double *>(base + third),
                reinterpret_cast<double *>(base + 2 * third), 3.0, third / 8, streaming);
  }
}

} // namespace

std::vector<std::int64_t> time_mix(Mix mix, Isa isa, std::size_t bytes, const std::vector<int> &cpus, int passes,
                                   int repeats, bool streaming) {
  using Clock = std::chrono::steady_clock;
  if (cpus.empty()) throw std::invalid_argument("at least one CPU must be named");
  const BandwidthLoops loops = bandwidth_loops(isa);
  const int n = static_cast<int>(cpus.size());
  Barrier barrier(n);
  std::atomic<std::uint64_t> sink{0};
  using Times = std::vector<Clock::time_point>;
  std::vector<Times> starts(n, Times(repeats)), ends(n, Times(repeats));
  std::atomic<bool> failed{false};
  std::atomic<int> refused{-1};
  std::promise<bool> all_started; // false: some threads did not start, so no thread waits for the others
  const std::shared_future<bool> begin = all_started.get_future().share();

  auto work = [&](int rank) {
    if (!begin.get()) return;
    if (!pin(cpus[rank])) {
      refused = cpus[rank];
      failed = true;
    }
    std::unique_ptr<Memory> memory;
    try {
      memory = std::make_unique<Memory>(bytes);
      loops.write(memory->data(), 0x3ff0000000000000 + rank, bytes, false);
      run_mix(mix, loops, memory->data(), bytes, streaming, sink); // warm: page tables, caches, clocks
    } catch (const std::bad_alloc &) { failed = true; }
    for (int r = 0; r < repeats; ++r) {
      barrier.wait();
      if (failed) return;
      starts[rank][r] = Clock::now();
      for (int p = 0; p < passes; ++p) run_mix(mix, loops, memory->data(), bytes, streaming, sink);
      ends[rank][r] = Clock::now();
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < n; ++rank) threads.emplace_back(work, rank);
    all_started.set_value(true);
  } catch (const std::system_error &) { all_started.set_value(false); }
  for (auto &thread : threads) thread.join();
  if (!begin.get()) throw std::runtime_error("cannot start " + std::to_string(n) + " threads");
  if (refused >= 0) throw std::invalid_argument("CPU " + std::to_string(refused) + " cannot be used by this process");
  if (failed) throw std::runtime_error("not enough memory for " + std::to_string(bytes) + " bytes per thread");

  std::vector<std::int64_t> rounds;
  for (int r = 0; r < repeats; ++r) {
    auto first = starts[0][r];
    auto last = ends[0][r];
    for (int rank = 1; rank < n; ++rank) {
      first = std::min(first, starts[rank][r]);
      last = std::max(last, ends[rank][r]);
    }
    rounds.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(last - first).count());
  }
  return rounds;
}

} // namespace ridgeline
