// Byte streams between two ranks: sockets (TCP, or Unix within a host) and shared memory. A stream never blocks; `fd` tells
// when it may move again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <sys/types.h>
#include <sys/uio.h>

namespace ridgeline {

enum class Transport : int { shm, tcp, udp, ucx };

struct StreamState {
  std::int64_t rtt_ns = 0;
  std::uint64_t retransmissions = 0;
  std::uint64_t strangers = 0; // packets that no rank of this job sent
};

class Stream {
public:
  virtual ~Stream() = default;
  virtual int fd() const = 0; // −1: none; it is asked in every round
  virtual void end() = 0; // for both ranks; a forked child may have the socket, too, so that close() alone would not end it
  // Bytes that moved; 0: none now; -1: the other rank has closed the stream.
  virtual ssize_t read(void *to, std::size_t bytes) = 0;
  virtual ssize_t write(const iovec *pieces, int count) = 0;
  // Called before a wait for `fd`. What the stream can do now without an event that tells it.
  struct Ready { bool read = false, write = false; };
  virtual Ready prepare_wait(bool /*writes*/) { return {}; }
  virtual void clear_events() {} // called when `fd` had an event
  virtual StreamState state() const { return {}; }
  // Of streams that this process serves, not the kernel:
  virtual bool needs_polling() const { return false; } // `fd` does not tell everything, so it is asked more often
  virtual std::int64_t longest_wait_ns() const { return INT64_MAX; } // before this stream must be asked again
  virtual bool is_flushed() { return true; } // whether all that was written has arrived, or never will
  virtual bool should_settle() const { return false; } // a call should end only when what it has written has arrived
};

std::unique_ptr<Stream> make_socket_stream(int fd, bool is_tcp);
// Two rings in the memory `memory_fd`; the socket `fd` wakes a rank that sleeps, and closes with the process.
std::unique_ptr<Stream> make_shared_stream(int fd, int memory_fd, bool first);
std::size_t shared_stream_bytes();

} // namespace ridgeline
