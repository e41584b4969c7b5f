// The memory that the ranks of one host share, and how they wait in it.
//
// One memfd, mapped by all: contexts (one per communicator) and, behind them, an arena per rank for registered buffers.
// It is sparse: what nobody touches costs nothing. A context holds for each rank a line (its progress and what it is
// doing), a slot for small data, an area for data on its way, and for each ordered pair of ranks two channels and a mail.
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
constexpr std::uint32_t kRoom = 2;           // messages a channel holds
constexpr int kContexts = 24;
constexpr int kChannelSets = 2;              // those of schedules, those of what is too long for a mail's cell
constexpr std::size_t kCell = 64 + 4096;     // a message of send and recv with its heading
constexpr std::uint32_t kCells = 8;          // messages a mail holds

enum class Fault : int { none, dead, late, mismatch, given_up, interrupted, refused };

struct Trouble { // thrown inside the engine, told as numbers at its face
  Fault fault;
  int rank;
};

// What a rank is calling: it stands in its line before it says that it has arrived, so all can compare.
struct Called {
  std::uint8_t op, type, how, algorithm;
  std::int32_t root;
  std::uint64_t count;
};

struct Where { // what only errors and long calls ask for
  std::uint32_t sequence, way;
  std::uint64_t address; // of the data: in the rank's arena (registered), or in its own memory
  std::int64_t stamp;    // CLOCK_MONOTONIC, ns
};

// Progress and call come in one cache line. Two of each: of an even and an odd call, for a rank is at most one ahead.
struct alignas(128) Line {
  std::atomic<std::uint32_t> progress, waiters;
  Called called[2];
  alignas(64) Where where[2];
};

struct alignas(128) Channel {
  std::atomic<std::uint32_t> sent, sent_waiters;
  alignas(128) std::atomic<std::uint32_t> taken, taken_waiters;
};

// A message: the receiver looks at `number` alone, and what is short has come with it, in the same cache line.
struct alignas(64) Cell {
  std::atomic<std::uint32_t> number, waiters; // of the message that lies here, plus one
  std::uint32_t type;
  std::uint64_t whole; // bytes; what is longer than `data` follows through the channel
  char data[kCell - 24];
};

// What one rank sends another. Each side keeps to lines of its own: the sender looks at `taken` once in kCells messages.
struct alignas(128) Mail {
  std::uint32_t sent, known; // the sender's: messages so far, and how many of them it knows to be taken
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

  std::atomic<std::uint32_t> &given_up() const { return *reinterpret_cast<std::atomic<std::uint32_t> *>(context_); }
  Line &line(int rank) const { return reinterpret_cast<Line *>(context_ + 128)[rank]; }
  char *slot(int rank, std::uint32_t sequence) const { return slots_ + (2 * std::size_t(rank) + sequence % 2) * kSlot; }
  char *area(int rank) const { return areas_ + std::size_t(rank) * kArea; }
  Mail &mail(int from, int to) const { return mails_[pair(0, from, to)]; }
  Channel &channel(int set, int from, int to) const { return channels_[pair(set, from, to)]; }
  char *fragment(int set, int from, int to, std::uint32_t number) const {
    return fragments_ + (pair(set, from, to) * kRoom + number % kRoom) * kFragment;
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

// Waits for words of other ranks: spins, then sleeps in the kernel, and looks now and then whether it waits in vain.
class Waiter {
public:
  Waiter(const Segment &segment, std::vector<int> pidfds, bool are_crowded);
  ~Waiter();
  Waiter(const Waiter &) = delete;
  Waiter &operator=(const Waiter &) = delete;

  // Until `word` has reached `value`; `rank` (of the world) is who must bring it there. Throws Trouble.
  void until(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value, int rank);
  // Whether `ranks` have all brought their progress there; looks for a moment, at all of them at once.
  bool all(const std::vector<int> &ranks, int me, std::uint32_t value);
  static void raise(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value);

  std::int64_t deadline = 0;            // CLOCK_MONOTONIC, ns
  std::vector<std::int64_t> waited_ns;  // by rank: whom this one has waited for
  std::function<bool()> interrupted;    // asked now and then
  std::function<void()> takes_long;     // told when a wait is longer than a moment, before it goes on
  bool crowded;                         // more ranks than CPUs: whoever spins keeps another from running

private:
  bool alive(int rank) const;
  void asleep(std::atomic<std::uint32_t> &word, std::atomic<std::uint32_t> &waiters, std::uint32_t value, int rank);

  const Segment &segment_;
  std::vector<int> pidfds_;
};

} // namespace ridgeline
