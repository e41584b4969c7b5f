#include "transport/stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace ridgeline {
namespace {

// Left to itself, the kernel lets several megabytes wait in a connection: they leave the caches before the other rank
// reads them. With this send buffer an all-reduce of 8 to 64 MB takes 0.9 of the CPU time, and one of 1 MB the same
// (cascade-lake-fabric-large.txt). The kernel doubles it, which carries 10 GB/s over a round trip of 100 µs; longer ones keep
// the buffer that the kernel chooses.
constexpr int kNearSendBuffer = 512 << 10;
constexpr std::uint32_t kNearUs = 100;

// The shortest round trip of a connection so far, in µs; none: the kernel is older than 4.6.
std::optional<std::uint32_t> get_shortest_rtt(int fd) {
  constexpr std::size_t kAt = 148; // of tcpi_min_rtt, which netinet/tcp.h does not have
  unsigned char info[kAt + sizeof(std::uint32_t)];
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) || length < sizeof info) return std::nullopt;
  std::uint32_t us;
  std::memcpy(&us, info + kAt, sizeof us);
  return us;
}

class SocketStream final : public Stream {
public:
  SocketStream(int fd, bool is_tcp) : fd_(fd), is_tcp_(is_tcp) {
    const std::optional<std::uint32_t> rtt_us = is_tcp ? get_shortest_rtt(fd) : std::nullopt;
    if (rtt_us && *rtt_us <= kNearUs) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kNearSendBuffer, sizeof kNearSendBuffer);
  }
  ~SocketStream() override { close(fd_); }
  void end() override { shutdown(fd_, SHUT_RDWR); }
  int fd() const override { return fd_; }

  ssize_t read(void *to, std::size_t bytes) override {
    const ssize_t got = recv(fd_, to, bytes, MSG_DONTWAIT);
    if (got > 0) return got;
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
  }

  ssize_t write(const iovec *pieces, int count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec *>(pieces);
    message.msg_iovlen = std::size_t(count);
    const ssize_t sent = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -1;
  }

  StreamState state() const override {
    tcp_info info{};
    socklen_t length = sizeof info;
    if (!is_tcp_ || getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &length)) return {};
    return {std::int64_t(info.tcpi_rtt) * 1000, info.tcpi_total_retrans};
  }

private:
  int fd_;
  bool is_tcp_;
};

constexpr std::size_t kRing = 1 << 20;

// Bytes from one rank to the other; both counters only grow.
struct Ring {
  alignas(128) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> reader_sleeps;
  alignas(128) std::atomic<std::uint64_t> taken;
  std::atomic<std::uint32_t> writer_sleeps;
  alignas(128) char data[kRing];
};

class SharedStream final : public Stream {
public:
  SharedStream(int fd, int memory_fd, bool first) : fd_(fd) {
    void *at = mmap(nullptr, 2 * sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    close(memory_fd);
    if (at == MAP_FAILED) throw std::runtime_error("the memory of a shared stream cannot be mapped");
    rings_ = static_cast<Ring *>(at);
    in_ = rings_ + (first ? 0 : 1);
    out_ = rings_ + (first ? 1 : 0);
  }
  ~SharedStream() override {
    close(fd_);
    munmap(rings_, 2 * sizeof(Ring));
  }
  void end() override { shutdown(fd_, SHUT_RDWR); }
  int fd() const override { return fd_; }

  ssize_t read(void *to, std::size_t bytes) override {
    const std::uint64_t taken = in_->taken.load(std::memory_order_relaxed);
    std::size_t available = in_->written.load(std::memory_order_acquire) - taken;
    if (!available) {
      if (!closed_) return 0;
      // The other rank may have written before it closed the stream.
      available = in_->written.load(std::memory_order_seq_cst) - taken;
      if (!available) return -1;
    }
    const std::size_t count = std::min(bytes, available), at = taken % kRing, first = std::min(count, kRing - at);
    std::memcpy(to, in_->data + at, first);
    std::memcpy(static_cast<char *>(to) + first, in_->data, count - first);
    in_->taken.store(taken + count, std::memory_order_seq_cst);
    if (in_->writer_sleeps.load(std::memory_order_seq_cst)) wake(in_->writer_sleeps);
    return ssize_t(count);
  }

  ssize_t write(const iovec *pieces, int count) override {
    if (closed_) return -1;
    const std::uint64_t start = out_->written.load(std::memory_order_relaxed);
    std::size_t space = kRing - (start - out_->taken.load(std::memory_order_acquire));
    std::uint64_t written = start;
    for (int k = 0; k < count && space; ++k) {
      const char *from = static_cast<const char *>(pieces[k].iov_base);
      const std::size_t bytes = std::min(pieces[k].iov_len, space), at = written % kRing, first = std::min(bytes, kRing - at);
      std::memcpy(out_->data + at, from, first);
      std::memcpy(out_->data, from + first, bytes - first);
      written += bytes, space -= bytes;
    }
    if (written == start) return 0;
    out_->written.store(written, std::memory_order_seq_cst);
    if (out_->reader_sleeps.load(std::memory_order_seq_cst)) wake(out_->reader_sleeps);
    return ssize_t(written - start);
  }

  Ready prepare_wait(bool writes) override {
    in_->reader_sleeps.store(1, std::memory_order_seq_cst);
    if (writes) out_->writer_sleeps.store(1, std::memory_order_seq_cst);
    const bool can_read = in_->written.load(std::memory_order_seq_cst) != in_->taken.load(std::memory_order_relaxed);
    const bool can_write = out_->written.load(std::memory_order_relaxed) - out_->taken.load(std::memory_order_seq_cst) < kRing;
    return {can_read, writes && can_write};
  }

  void clear_events() override {
    char bytes[256];
    for (;;) {
      const ssize_t got = recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got > 0) continue;
      if (got == 0 || (errno != EAGAIN && errno != EINTR)) closed_ = true;
      return;
    }
  }

private:
  void wake(std::atomic<std::uint32_t> &sleeps) {
    if (sleeps.exchange(0, std::memory_order_seq_cst)) {
      const char byte = 0;
      if (::send(fd_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return; // full: the other rank is awake in any case
    }
  }

  int fd_;
  bool closed_ = false;
  Ring *rings_, *in_, *out_;
};

} // namespace

std::unique_ptr<Stream> make_socket_stream(int fd, bool is_tcp) { return std::make_unique<SocketStream>(fd, is_tcp); }
std::unique_ptr<Stream> make_shared_stream(int fd, int memory_fd, bool first) {
  return std::make_unique<SharedStream>(fd, memory_fd, first);
}
std::size_t shared_stream_bytes() { return 2 * sizeof(Ring); }

} // namespace ridgeline
