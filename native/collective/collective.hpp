// Collective operations over a shared-memory segment: all ranks read the data of all ranks, or follow a schedule over
// channels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collective/reduce.hpp"
#include "collective/segment.hpp"

namespace ridgeline {

enum class Op : std::uint32_t { all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, barrier, send, recv };
constexpr int kOps = 9;
// Values of Called::algorithm beside the numbers of the built-in algorithms
constexpr std::uint32_t kRefusedCall = 254; // the rank refused its arguments
constexpr std::uint32_t kOwnSchedule = 255; // a schedule of the caller, see Called::schedule_hash

// How other ranks read the data of a rank.
enum class DataPath : std::uint32_t { bounce, registered, foreign }; // by its area; in the arena; by process_vm_readv

struct Call {
  Op op;
  const void *in; // for a broadcast: the same as out
  void *out;
  std::uint64_t count; // elements that each rank sends (all_gather, broadcast, all_reduce) or receives (reduce_scatter, all_to_all)
  Number type;
  Combine how = Combine::sum;
  int root = 0;
  std::int64_t timeout_ns = 0;
  const char *type_name = ""; // for Number::bytes: ranks with different types must not exchange bytes
};

extern std::atomic<std::uint32_t> forks; // of this process and its ancestors, since the first communicator
std::uint32_t count_forks();
std::size_t sent_bytes(const Call &call, int ranks);
// Whether the result would overwrite data that this rank or another one has yet to read.
bool overwrites_input(const Call &call, int ranks, int me);
std::uint32_t hash_text(const char *text);
inline std::uint32_t hash_type(Number type, const char *name) { return type == Number::bytes ? hash_text(name) : 0; }

// The program of one rank, rows of (kind, peer, chunk, width), over `chunks` pieces of the data.
struct Program {
  const std::int32_t *steps;
  std::size_t rows;
  int chunks, widest; // the largest width in the programs of all ranks
  std::uint32_t algorithm, schedule_hash;
};

enum StepKind : std::int32_t { send_step, recv_step, reduce_step, copy_step };

// The data of a call as the chunks of a program. The program runs once for each cut of the data, so that no message is longer
// than `message_bytes`, and the messages of the cuts follow each other. Chunks may differ by one element in length.
class ChunkedData {
public:
  // Throws std::invalid_argument, unless all steps name valid ranks and chunks, and a message of one element per chunk fits.
  ChunkedData(const Call &call, const Program &program, int ranks, int me, std::size_t message_bytes);
  void begin(std::vector<char> &scratch); // moves the input to its place
  bool has_cut() const { return low_ < longest_; }
  void next_cut() { low_ += cut_; }
  std::pair<char *, std::uint64_t> piece(std::int64_t chunk) const; // of this cut: its place and its elements
  void copy(std::int64_t from, std::int64_t to, std::int32_t width) const; // of this cut
  void reduce(const ReduceLoops &loops, std::int64_t chunk, std::int32_t width, const char *from) const; // chunks side by side
  void finish(const ReduceLoops &loops) const; // moves the result to its place
  std::size_t bytes() const { return bytes_; }

private:
  std::uint64_t begin_of(std::int64_t chunk) const;

  const Call &call_;
  int ranks_, me_, chunks_, per_;
  bool has_blocks_;
  std::size_t one_, block_, bytes_;
  std::uint64_t longest_, cut_, low_ = 0;
  char *data_ = nullptr;
};

struct Usage {
  std::uint64_t calls = 0, bytes = 0;
  std::int64_t ns = 0;
};

// One rank's end of a communicator, over shared memory or over links to other hosts. `in` and `out` of a call may overlap in
// any way. A mismatch between the ranks is thrown before the data of `in` changes.
class RankEngine {
public:
  virtual ~RankEngine() = default;
  virtual void run(const Call &call) = 0;
  virtual void run(const Call &call, const Program &program) = 0;
  // Counts as a call, so that the other ranks get a mismatch at once; does not wait for them.
  virtual void refuse(Op op, std::int64_t timeout_ns) = 0;
  virtual void send(const void *from, std::uint64_t bytes, Number type, int to, std::int64_t timeout_ns, const char *type_name = "") = 0;
  virtual void receive(void *to, std::uint64_t bytes, Number type, int from, std::int64_t timeout_ns, const char *type_name = "") = 0;

  virtual int size() const = 0;
  virtual int me() const = 0;
  virtual std::uint32_t call_number() const = 0;
  virtual std::pair<Called, CallData> disputed(int rank) const = 0;
  virtual std::pair<Called, CallData> read_last_header(int rank) const = 0;
  virtual std::string type_name(int rank, std::uint32_t sequence) const = 0;
  virtual void fail(const Failure &failure) = 0; // ends the communicator for all ranks: the current call leaves data in flight
  virtual void abort() = 0;                      // from any thread
  virtual const FirstFailure *first_failure() const = 0;
  virtual void look_for_failures() {} // that other ranks have reported; between calls
  virtual std::vector<std::int64_t> waited_ns() const = 0; // by rank of the world
  bool is_forked() const { return forks.load(std::memory_order_relaxed) != forks_; } // whether this process is a child of the rank: it must not touch what the ranks share

  Usage usage[kOps];

protected:
  std::uint32_t forks_ = count_forks(); // of this process when the communicator was made
};

class Collective final : public RankEngine {
public:
  Collective(int fd, int world, int context, std::size_t arena_bytes, std::vector<int> members, int me, const std::vector<int> &pids,
             std::vector<int> pidfds, bool crowded);

  void run(const Call &call) override;
  void run(const Call &call, const Program &program) override;
  void refuse(Op op, std::int64_t timeout_ns) override;
  bool can_read(int rank, std::uint64_t address, std::uint64_t expected); // whether process_vm_readv is allowed
  void send(const void *from, std::uint64_t bytes, Number type, int to, std::int64_t timeout_ns, const char *type_name) override;
  void receive(void *to, std::uint64_t bytes, Number type, int from, std::int64_t timeout_ns, const char *type_name) override;

  int size() const override { return int(members_.size()); }
  int me() const override { return me_; }
  std::uint32_t call_number() const override { return number_; }
  std::pair<Called, CallData> disputed(int rank) const override { return read_header(rank, disputed_); }
  std::pair<Called, CallData> read_last_header(int rank) const override;
  char *arena() const { return segment_.arena(members_[me_]); }
  std::string type_name(int rank, std::uint32_t sequence) const override { return segment_.line(members_[rank]).type_name[sequence % 2]; }
  void fail(const Failure &failure) override;
  void abort() override { fail({Fault::aborted, members_[me_]}); }
  const FirstFailure *first_failure() const override;
  std::vector<std::int64_t> waited_ns() const override { return waiter.waited_ns; }

  std::uint64_t small = 8 << 10;        // up to this size data goes through slots
  std::uint64_t full_reduce_bytes = 8 << 10;        // up to this size every rank reduces everything; up to `small` each rank reduces its part
  std::uint64_t foreign_from = ~0ull;   // from this size on reductions use process_vm_readv, where it is allowed
  std::uint64_t foreign_moves_from = ~0ull; // the same for calls that only move data
  std::uint64_t slice = 128 << 10;      // bytes of one part of the data, when it goes through areas
  bool foreign = false;
  Waiter waiter;

private:
  std::pair<Called, CallData> read_header(int rank, std::uint32_t sequence) const {
    const Line &line = segment_.line(members_[rank]);
    return {line.called[sequence % 2], line.call_data[sequence % 2]};
  }
  void start(Op op, std::uint32_t number, std::int64_t timeout_ns) {
    if (first_failure_.state.load(std::memory_order_relaxed)) throw Failure{Fault::failed_before, members_[me_]};
    op_ = op, number_ = number, timeout_ns_ = timeout_ns;
    start_ns_ = monotonic_ns();
    waiter.deadline = start_ns_ + timeout_ns;
  }
  std::uint32_t arrive(const Call &call, std::uint32_t algorithm, std::uint32_t schedule_hash, bool hidden, std::size_t slot_bytes);
  std::vector<std::uint64_t> parts(const Call &call) const;
  void advance_and_wait();
  void sync();
  bool read(int rank, std::uint64_t offset, void *to, std::size_t bytes);
  const char *visible_data(int rank, std::uint64_t offset) const;
  bool all_visible() const;

  void small_call(const Call &call, std::uint32_t sequence);
  void reduce_slots(const Call &call, std::uint32_t sequence);
  void reduce_parts(const Call &call, const std::vector<std::uint64_t> &begin, bool share);
  void reduce_visible(const Call &call, const std::vector<std::uint64_t> &begin, bool share);
  void exchange_slices(const Call &call);
  void stream(const Call &call);
  void read_others(const Call &call);
  void put(int set, int to, const std::vector<std::pair<const char *, std::size_t>> &pieces);

  Segment segment_;
  std::vector<int> members_, pids_;
  int me_;
  std::uint32_t sequence_ = 0, progress_ = 0, disputed_ = 0;
  FirstFailure &first_failure_;
  bool refused_ = false;      // the last call was refused without waiting for the other ranks
  Op op_ = Op::barrier;       // of the current call, as are the next three
  std::uint32_t number_ = 0;  // sequence number, or that of a message between two ranks
  std::int64_t start_ns_ = 0, timeout_ns_ = 0;
  std::vector<CallData> call_data_;
  std::vector<const void *> from_;
  std::vector<char> scratch_;
  ReduceLoops loops_;
};

} // namespace ridgeline
