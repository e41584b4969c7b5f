// The streams between this rank and all others: frames are written from the memory of the caller and read into the place
// where they belong.
//
// A pair of ranks has one control stream (failures, waits) and two sets of lanes: for calls, and for messages (send, recv).
// Frames of one lane keep their order. A frame whose place is not known yet stays in its stream, which so limits the sender.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/frame.hpp"
#include "transport/stream.hpp"
#include "transport/ucx.hpp"

namespace ridgeline {

// A receive that has been posted: consecutive bytes go to `base`, or around a ring of `ring` bytes as far as `limit`.
struct Incoming {
  std::uint32_t sequence = 0, index = 0;
  std::uint64_t length = 0;
  char *base = nullptr;
  std::uint64_t ring = 0, limit = ~0ull; // ring 0: no ring
  std::vector<iovec> pieces;             // instead of `base`
  bool is_message = false, discards = false;
  std::uint32_t hash = 0;                // of a message: what its frame must say
  std::uint64_t total = 0;

  std::uint64_t received = 0;
  bool has_started = false, is_other = false; // is_other: the frame of the message says another type or length
  Frame frame{};
  std::size_t piece = 0, piece_at = 0;
  bool is_done() const { return has_started && received == length; }
};

// Bytes to be written: `ready` bytes (of a variable that grows), or all.
struct Outgoing {
  Frame frame{};
  std::string owned;          // instead of `base`
  const char *base = nullptr;
  const std::uint64_t *ready = nullptr;
  std::uint64_t written = 0;  // with the frame
  std::uint64_t *unfinished = nullptr; // a counter, which this decrements when it is written
};

struct CallSlot { // of one rank, for even or odd calls: a rank is at most one call ahead
  std::uint32_t sequence = 0;
  bool is_full = false;
  std::size_t bytes = 0; // of the small data
  std::int64_t stamp = 0;
  Incoming incoming;
  CallFrame call{{0, 0, 0, 0, 0, 0, 0}, {}};
  std::vector<char> data;
};

struct Lane {
  std::unique_ptr<Stream> stream;
  int rank = -1;
  bool is_control = false;
  bool may_read = true, may_write = true;
  bool needs_polling = false;
  bool is_closed = false, is_write_closed = false; // by the other rank
  std::vector<char> buffer;
  std::size_t begin = 0, end = 0;
  bool has_frame = false;
  Frame frame{};
  std::uint64_t left = 0;       // of what follows the frame
  Incoming *target = nullptr;
  Incoming control;
  char control_data[kControl];
  std::deque<Incoming *> posted;
  std::deque<Outgoing> queue;
};

struct LinkFiles { // of one other rank
  Transport transport = Transport::tcp;
  int control = -1;
  std::vector<int> lanes;  // those for calls, then those for messages
  std::vector<int> memory; // of each lane, for shm
  std::vector<std::pair<std::uint64_t, std::uint64_t>> keys; // of the control stream and each lane, for udp: to send, to receive
  std::string address; // of its worker, for ucx: then the lanes are -1
};

class Links {
public:
  Links(int me, std::vector<LinkFiles> files, std::shared_ptr<UcxWorker> ucx = nullptr); // ucx: of this rank, if some rank is reached by it
  ~Links();
  Links(const Links &) = delete;
  Links &operator=(const Links &) = delete;

  int size() const { return int(peers_.size()); }
  int lanes() const { return lanes_; }
  Lane &lane(int rank, int number) { return *peers_[rank].lanes[number]; }
  Lane &message_lane(int rank, int number) { return *peers_[rank].lanes[lanes_ + number]; }
  Lane &control_lane(int rank) { return *peers_[rank].control; }
  CallSlot &slot(int rank, std::uint32_t sequence) { return peers_[rank].slots[sequence % 2]; }
  const CallSlot &slot(int rank, std::uint32_t sequence) const { return peers_[rank].slots[sequence % 2]; }
  Transport transport(int rank) const { return peers_[rank].transport; }
  StreamState state(int rank) const;
  bool is_gone(int rank) const { return peers_[rank].is_gone; } // it has closed a stream
  std::uint32_t waits_for(int rank) const { return peers_[rank].waits_for; } // rank + 1

  void write(Lane &lane, Outgoing outgoing); // writes what the stream takes now, queues the rest
  void write_copy(Lane &lane, const Frame &frame, const iovec *pieces, int count); // the same; the memory is free afterwards
  void post(Lane &lane, Incoming *incoming);
  bool read(Lane &lane);  // what has arrived, if its place is known; whether something moved
  bool flush(Lane &lane);
  bool move_all();        // reads and writes where an event or a new place allows it
  void wait(std::int64_t ns); // for an event
  void send_control(int rank, const Frame &frame, const void *data); // from any thread
  void wake();            // from any thread: ends a wait
  void end(bool lingers); // closes all streams; lingers: when what was written has arrived, or after a while
  void settle();          // waits a short time until what was written has arrived, where no kernel sends it on
  void drop_calls();      // forgets what a failed call has posted

  std::function<void(int, const FailureFrame &)> on_failure;
  std::uint32_t next_sequence = 0; // of the next call: only that of an earlier one and the next may arrive

private:
  struct Peer {
    Transport transport = Transport::tcp;
    std::unique_ptr<Lane> control;
    std::vector<std::unique_ptr<Lane>> lanes;
    CallSlot slots[2];
    bool is_gone = false;
    std::uint32_t waits_for = 0;
  };

  void add(std::unique_ptr<Lane> &lane, int rank, std::unique_ptr<Stream> stream, bool is_control);
  bool take_frame(Lane &lane);
  void finish_frame(Lane &lane);
  void lose(Lane &lane, bool writes); // the other rank has closed one direction
  std::pair<char *, std::size_t> get_place(const Incoming &incoming);

  int me_, lanes_ = 0, epoll_ = -1, wake_ = -1;
  std::shared_ptr<UcxWorker> ucx_;
  std::vector<Peer> peers_;
  std::vector<Lane *> all_;
  bool polls_ = false; // some stream needs it
  std::vector<char> trash_;
};

} // namespace ridgeline
