// Collectives over a segment: everyone's data where everyone can see it, and schedules over channels.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collective/reduce.hpp"
#include "collective/segment.hpp"

namespace ridgeline {

enum class Op : std::uint32_t { all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, barrier, send, recv };
constexpr int kOps = 9;

// How the others get at a rank's data.
enum class Way : std::uint32_t { bounce, registered, foreign }; // through its area; it lies in the arena; by process_vm_readv

struct Call {
  Op op;
  const void *in; // of a broadcast: the same as out
  void *out;
  std::uint64_t count; // elements each rank gives (all_gather, broadcast, all_reduce) or gets (reduce_scatter, all_to_all)
  Number type;
  Combine how = Combine::sum;
  int root = 0;
  std::int64_t timeout_ns = 0;
};

struct Usage {
  std::uint64_t calls = 0, bytes = 0;
  std::int64_t ns = 0;
};

class Collective {
public:
  Collective(int fd, int world, int context, std::size_t arena_bytes, std::vector<int> members, int me, const std::vector<int> &pids,
             std::vector<int> pidfds, bool crowded);

  void run(const Call &call);
  // One rank's program, rows of (kind, peer, chunk, width), over `chunks` pieces of the data; `widest`: of all ranks' steps.
  void run(const Call &call, const std::int32_t *steps, std::size_t rows, int chunks, int widest, std::uint32_t algorithm);
  bool may_look(int rank, std::uint64_t address, std::uint64_t expected); // whether process_vm_readv is allowed
  void send(const void *from, std::uint64_t bytes, Number type, int to, std::int64_t timeout_ns);
  void receive(void *to, std::uint64_t bytes, Number type, int from, std::int64_t timeout_ns);

  int size() const { return int(members_.size()); }
  int me() const { return me_; }
  std::pair<Called, Where> disputed(int rank) const { return said(rank, disputed_); }
  std::pair<Called, Where> last_said(int rank) const;
  char *arena() const { return segment_.arena(members_[me_]); }
  void give_up(int rank);

  std::uint64_t small = 8 << 10;        // up to here data goes through slots
  std::uint64_t whole = 8 << 10;        // up to here every rank adds all of it, from there to `small` each adds its part
  std::uint64_t foreign_from = ~0ull;   // from here reductions use process_vm_readv, where it is allowed
  std::uint64_t foreign_moves_from = ~0ull; // the same of calls that only move data
  std::uint64_t slice = 128 << 10;      // of one part of the data, when it goes through areas
  bool foreign = false;
  Usage usage[kOps];
  Waiter waiter;

private:
  std::pair<Called, Where> said(int rank, std::uint32_t sequence) const {
    const Line &line = segment_.line(members_[rank]);
    return {line.called[sequence % 2], line.where[sequence % 2]};
  }
  std::uint32_t arrive(const Call &call, std::uint32_t algorithm, const void *payload, std::size_t bytes);
  std::vector<std::uint64_t> parts(const Call &call) const;
  void together();
  void sync();
  bool read(int rank, std::uint64_t offset, void *to, std::size_t bytes);
  const char *seen(int rank, std::uint64_t offset) const;
  bool all_seen() const;

  void small_call(const Call &call, std::uint32_t sequence);
  void reduce_slots(const Call &call, std::uint32_t sequence);
  void reduce_parts(const Call &call, const std::vector<std::uint64_t> &begin, bool share);
  void reduce_seen(const Call &call, const std::vector<std::uint64_t> &begin, bool share);
  void hand_round(const Call &call);
  void stream(const Call &call);
  void read_round(const Call &call);
  void put(int set, int to, const std::vector<std::pair<const char *, std::size_t>> &pieces);

  Segment segment_;
  std::vector<int> members_, pids_;
  int me_;
  std::uint32_t sequence_ = 0, progress_ = 0, disputed_ = 0;
  std::int64_t began_ = 0; // the call under way
  std::vector<Where> where_;
  std::vector<const void *> from_;
  std::vector<char> scratch_;
  ReduceLoops loops_;
};

} // namespace ridgeline
