// The memory that the ranks of one host share, and how they wait in it.
//
// All ranks map one memfd: contexts (one per communicator), then an arena per rank for registered buffers. It is sparse:
// untouched pages cost nothing. A context holds for each rank a line (its progress and its
// call), a slot for small data, an area for larger data, for each ordered pair of ranks two channels and a mail, and for
// each communicator its first failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace ridgeline {

constexpr std::size_t kSlot = 32 << 10;      // small data of one call
constexpr std::size_t kArea = 2 << 20;       // larger data, slice by slice
constexpr std::size_t kFragment = 64 << 10;  // one message in a channel
constexpr std::uint32_t kChannelMessages = 2;           // messages that a channel holds
constexpr int kContexts = 24;
constexpr int kChannelSets = 2;              // for schedules, and for messages that are too long for a mail cell
constexpr std::size_t kCell = 64 + 4096;     // a message of send and recv with its header
constexpr std::uint32_t kCells = 8;          // messages that a mail holds
constexpr std::size_t kTypeName = 48;        // bytes of a type's name in an error message

// failed_before: an earlier call left data in flight; forked: this process is a child of the rank; broken: an exception;
// nested: a call of a signal handler during another call; garbled: the rank sent something that does not fit the protocol
enum class Fault : int { none, dead, late, mismatch, failed_before, interrupted, refused, forked, broken, nested, aborted, garbled };

struct Failure { // thrown inside the engine; Python gets numbers
  Fault fault;
  int rank;
};

// The call of a rank. The rank writes it to its line before it reports its arrival, so that all ranks can compare.
// It has 16 bytes: with 24, a 1 KB all-reduce of two ranks took 4 % longer, since another rank polls the line it is in.
struct Called {
  std::uint8_t op, type, how, algorithm;
  std::uint32_t hash;         // of the name of a type without a reduction, and of a schedule that the caller gave
  std::uint64_t root_and_count; // 16 and 48 bits

  Called(std::uint32_t op_, std::uint32_t type_, std::uint32_t how_, std::uint32_t algorithm_, std::uint32_t hash_, int root,
         std::uint64_t count)
      : op(std::uint8_t(op_)), type(std::uint8_t(type_)), how(std::uint8_t(how_)), algorithm(std::uint8_t(algorithm_)), hash(hash_),
        root_and_count(std::uint64_t(root) << 48 | (count & kCount)) {}
  int root() const { return int(root_and_count >> 48); }
  std::uint64_t count() const { return root_and_count & kCount; }

  static constexpr std::uint64_t kCount = (1ull << 48) - 1;
};

struct CallData { // used by errors and long calls only
  std::uint32_t sequence, path;
  std::uint64_t address; // of the data: in the rank's arena (registered), or in its own memory
  std::int64_t stamp;    // CLOCK_MONOTONIC, ns
};

// Progress and call share a cache line. There are two of each, for even and odd calls, because a rank is at most one ahead.
struct alignas(128) Line {
  std::atomic<std::uint32_t> progress, waiters;
  Called called[2];
  alignas(64) CallData call_data[2];
  std::atomic<std::uint32_t> waits_for; // world rank + 1; written in long waits only, and kept after a wait that failed
  char type_name[2][kTypeName];         // of types without a reduction
};

// What ended a communicator. The first rank that fails writes it; after that no rank starts a call.
struct alignas(128) FirstFailure {
  enum State : std::uint32_t { no_failure, writing, written };
  std::atomic<std::uint32_t> state;
  std::uint32_t op, sequence;
  std::int32_t fault, rank, reported_by; // ranks of the world
  std::int64_t timeout_ns;
};

struct alignas(128) Channel {
  std::atomic<std::uint32_t> sent, sent_waiters;
  alignas(128) std::atomic<std::uint32_t> taken, taken_waiters;
};

// `type` of a cell: Number, and above it the hash of the name of a type without a reduction.
// A message: the receiver polls `number` only, and a short message is in the same cache line.
struct alignas(64) Cell {
  std::atomic<std::uint32_t> number, waiters; // of the message in this cell, plus one
  std::uint64_t type, bytes; // a message longer than `data` follows through the channel
  char data[kCell - 24];
};

// Messages from one rank to another. Each side has cache lines of its own: the sender reads `taken` once in kCells messages.
struct alignas(128) Mail {
  std::uint32_t sent, known; // of the sender: messages so far, and how many of them were taken when it last read
  alignas(128) std::atomic<std::uint32_t> taken, taken_waiters;
  alignas(128) Cell cells[kCells];
};

class Segment {
public:
  Segment(int fd, int world, int context, std::size_t arena_bytes);
  ~Segment();
  Segment(const Segment &) = delete;
  Segment &operator=(const Segment &) = delete;

  static std::size_t context_bytes(int world);
  static std::size_t bytes(int world, std::size_t arena_bytes);

  Line &line(int rank) const { return reinterpret_cast<Line *>(context_)[rank]; }
  // Of the communicator whose first member is `rank`: communicators in one context have no member in common.
  FirstFailure &first_failure(int rank) const { return reinterpret_cast<FirstFailure *>(context_ + world_ * sizeof(Line))[rank]; }
  char *slot(int rank, std::uint32_t sequence) const { return slots_ + (2 * std::size_t(rank) + sequence % 2) * kSlot; }
  char *area(int rank) const { return areas_ + std::size_t(rank) * kArea; }
  Mail &mail(int from, int to) const { return mails_[pair(0, from, to)]; }
  Channel &channel(int set, int from, int to) const { return channels_[pair(set, from, to)]; }
  char *fragment(int set, int from, int to, std::uint32_t number) const {
    return fragments_ + (pair(set, from, to) * kChannelMessages + number % kChannelMessages) * kFragment;
  }
  char *arena(int rank) const { return arenas_ + std::size_t(rank) * arena_bytes_; }
  std::size_t arena_bytes() const { return arena_bytes_; }

private:
  std::size_t pair(int set, int from, int to) const { return (std::size_t(set) * world_ + from) * world_ + to; }

  int world_;
  std::size_t arena_bytes_, bytes_;
  char *base_, *context_, *slots_, *areas_, *fragments_, *arenas_;
  Channel *channels_;
  Mail *mails_;
};

std::int64_t monotonic_ns();

// Waits for words of other ranks: spins, then sleeps in the kernel, and regularly checks that the other rank is alive.
class Waiter {
public:
  Waiter(const Segment &segment, const std::vector<int> &members, int me, std::vector<int> pids, std::vector<int> pidfds,
         bool are_crowded);
  ~Waiter();
  Waiter(const Waiter &) = delete;
  Waiter &operator=(const Waiter &) = delete;

  // Waits until `word` has reached `value`; `rank` (of the world) must write it. Throws Failure.
  void until(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value, int rank);
  // Whether the progress of all `ranks` has reached `value`; polls all of them for a short time.
  bool all(const std::vector<int> &ranks, int me, std::uint32_t value);
  static void raise(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value);

  std::int64_t deadline = 0;            // CLOCK_MONOTONIC, ns
  std::vector<std::int64_t> waited_ns;  // by rank: the time that this rank has waited for it
  std::function<bool()> interrupted;    // called regularly during a wait
  std::function<void()> takes_long;     // called once when a wait takes longer than a short spin
  bool crowded;                         // more ranks than CPUs: a rank that spins stops another from running

private:
  bool alive(int rank) const;
  int find_cause(int rank) const;
  void sleep_until(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value, int rank);

  const Segment &segment_;
  int me_, first_member_; // ranks of the world
  std::vector<int> pids_, pidfds_;
};

} // namespace ridgeline
