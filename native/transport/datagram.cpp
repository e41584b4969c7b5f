#include "transport/datagram.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/segment.hpp"
#include "transport/caretaker.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace ridgeline {
namespace {

enum PacketKind : std::uint8_t { kData = 1, kAck, kHeartbeat, kClose };
constexpr std::uint8_t kAckNow = 1, kHasEcho = 2;
constexpr std::size_t kHeader = sizeof(PacketHeader);
constexpr std::size_t kMostRanges = 32;         // of one acknowledgement
constexpr std::size_t kMostTogether = 44;       // packets of one call of the kernel
constexpr std::size_t kMostPayload = 32 << 10;  // of one packet, where the path would take more
constexpr std::size_t kLeastPayload = 1280 - 48 - kHeader; // every IPv6 path takes it
constexpr std::uint64_t kReadAtOnce = 1 << 20;  // bytes read from the socket before the caller goes on
constexpr std::int64_t kAckDelayNs = 1'000'000;
constexpr std::int64_t kLossyNs = 2'000'000'000; // after a repetition: the path loses packets
constexpr double kBeta = .7, kCubic = .4;        // of RFC 9438

// SipHash-2-4 (Aumasson and Bernstein) of words. Only the two ranks have the key, by the handshake.
std::uint64_t hash_words(std::uint64_t key, const char *data, std::size_t words) {
  std::uint64_t v0 = key ^ 0x736f6d6570736575, v1 = ~key ^ 0x646f72616e646f6d, v2 = key ^ 0x6c7967656e657261, v3 = ~key ^ 0x7465646279746573;
  auto turn = [](std::uint64_t x, int by) { return x << by | x >> (64 - by); };
  auto mix = [&] {
    v0 += v1, v1 = turn(v1, 13) ^ v0, v0 = turn(v0, 32), v2 += v3, v3 = turn(v3, 16) ^ v2;
    v0 += v3, v3 = turn(v3, 21) ^ v0, v2 += v1, v1 = turn(v1, 17) ^ v2, v2 = turn(v2, 32);
  };
  for (std::size_t k = 0; k <= words; ++k) {
    std::uint64_t word = std::uint64_t(words) << 59; // the length, last
    if (k < words) std::memcpy(&word, data + 8 * k, 8);
    v3 ^= word;
    mix(), mix();
    v0 ^= word;
  }
  v2 ^= 0xff;
  for (int k = 0; k < 4; ++k) mix();
  return v0 ^ v1 ^ v2 ^ v3;
}

// Of a packet: all of it but the payload of data.
std::uint64_t make_tag(std::uint64_t key, const char *packet, std::size_t bytes) {
  return hash_words(key, packet + sizeof(std::uint64_t), bytes / 8 - 1);
}

// Bytes [offset, offset + length) of the stream that are on their way, or wait to be sent again.
struct Segment {
  std::uint64_t offset;
  std::uint32_t length;
  bool has_arrived, is_lost;
  std::uint16_t tries;
  std::int64_t sent_ns;
};

class DatagramStream final : public Stream, public Tended {
public:
  DatagramStream(int fd, std::uint64_t send_key, std::uint64_t receive_key, DatagramOptions options, std::function<void()> progress)
      : fd_(fd), send_key_(send_key), receive_key_(receive_key), options_(options), progress_(std::move(progress)), process_(getpid()),
        capacity_(options.buffer_bytes), scratch_(64 << 10) {
    void *at = mmap(nullptr, 2 * capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("the buffers of a UDP stream cannot be allocated");
    memory_ = static_cast<char *>(at);
    out_ = memory_, in_ = memory_ + capacity_;
    const int one = 1, buffer_bytes = int(2 * capacity_), find = IP_PMTUDISC_DO;
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    getsockname(fd_, reinterpret_cast<sockaddr *>(&name), &length);
    is_v6_ = name.ss_family == AF_INET6;
    // The forced size needs a privilege; without it net.core.rmem_max limits the window.
    if (setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes)) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
    // What waits in a queue of this host. TCP lets little wait there (small queues), so with more a TCP flow on the same link
    // gets a fifth of it.
    const int queue_bytes = 128 << 10;
    setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &queue_bytes, sizeof queue_bytes);
    int granted = 0;
    length = sizeof granted;
    getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &granted, &length);
    most_window_ = std::min<std::uint64_t>(capacity_, std::max(granted / 2, 64 << 10)); // the kernel counts its own overhead, too
    setsockopt(fd_, SOL_UDP, UDP_GRO, &one, sizeof one);
    if (is_v6_) setsockopt(fd_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &find, sizeof find);
    else setsockopt(fd_, IPPROTO_IP, IP_MTU_DISCOVER, &find, sizeof find);
    read_path();
    window_ = 10 * payload_;
    last_received_ns_ = sent_ns_ = polled_ns_ = monotonic_ns();
    start_tending(this);
  }

  ~DatagramStream() override {
    if (process_ == getpid()) stop_tending(this); // a forked child has no such thread, and perhaps a held lock
    munmap(memory_, 2 * capacity_);
    close(fd_);
  }

  int fd() const override { return fd_; }
  bool needs_polling() const override { return true; }

  ssize_t read(void *to, std::size_t bytes) override {
    std::lock_guard<std::mutex> hold(lock_);
    const std::int64_t now = begin();
    char *place = static_cast<char *>(to);
    std::size_t got = take(place, bytes);
    if (got < bytes) {
      place_ = place + got, place_bytes_ = bytes - got;
      receive(now);
      got = std::size_t(place_ - place);
      place_ = nullptr, place_bytes_ = 0;
      got += take(place + got, bytes - got);
    }
    update(now);
    if (got) return ssize_t(got);
    return is_closed_ && received_ == taken_ ? -1 : 0;
  }

  ssize_t write(const iovec *pieces, int count) override {
    std::lock_guard<std::mutex> hold(lock_);
    if (is_closed_ || has_ended_) return -1;
    std::int64_t now = begin();
    // What waits here beyond the window would only wait for this thread to come back.
    std::uint64_t space = get_space();
    if (!space) {
      receive(now);
      now = monotonic_ns();
      space = get_space();
    }
    std::size_t copied = 0;
    for (int k = 0; k < count && space; ++k) {
      const char *from = static_cast<const char *>(pieces[k].iov_base);
      const std::size_t bytes = std::min<std::uint64_t>(pieces[k].iov_len, space);
      copy_in(out_, end_, from, bytes);
      end_ += bytes, space -= bytes, copied += bytes;
    }
    update(now);
    return is_closed_ ? -1 : ssize_t(copied);
  }

  Ready prepare_wait(bool writes) override {
    std::lock_guard<std::mutex> hold(lock_);
    const std::int64_t now = begin();
    update(now);
    return {received_ > taken_ || is_closed_, writes && (is_closed_ || get_space() > 0)};
  }

  std::int64_t longest_wait_ns() const override {
    std::lock_guard<std::mutex> hold(lock_);
    return first_ < end_ || must_ack_ ? 1'000'000 : ~(1ull << 63);
  }

  bool is_flushed() override { // everything has arrived at the other rank, or never will
    std::lock_guard<std::mutex> hold(lock_);
    const std::int64_t now = begin();
    receive(now);
    update(now);
    return first_ == end_ || is_closed_;
  }
  bool should_settle() const override { // the path has lost something a short time ago
    std::lock_guard<std::mutex> hold(lock_);
    return repeated_ns_ && monotonic_ns() - repeated_ns_ < kLossyNs;
  }

  void end() override {
    std::lock_guard<std::mutex> hold(lock_);
    if (has_ended_) return;
    has_ended_ = true;
    for (int k = 0; k < 3; ++k) send_short(kClose, 0, monotonic_ns());
    is_closed_ = true;
  }

  StreamState state() const override {
    std::lock_guard<std::mutex> hold(lock_);
    return {smooth_rtt_ns_, repetitions_, strangers_};
  }

  bool tend(std::int64_t now, bool was_stopped) override {
    std::unique_lock<std::mutex> hold(lock_, std::try_to_lock);
    if (!hold.owns_lock() || is_closed_) return false;
    if (was_stopped) last_received_ns_ = std::max(last_received_ns_, now - options_.heartbeat_ns); // this process slept, not the other one
    const std::uint64_t received = received_, space = get_space();
    if (now - polled_ns_ > kTickNs - 1'000'000) {
      receive(now);
      update(now);
    }
    if (now - sent_ns_ > options_.heartbeat_ns) send_short(kHeartbeat, kAckNow, now);
    if (!is_closed_ && now - last_received_ns_ > options_.silence_ns) {
      receive(now);
      if (now - last_received_ns_ > options_.silence_ns) is_closed_ = true;
    }
    const bool changed = is_closed_ || received_ != received || (!space && get_space());
    const bool is_busy = first_ < end_ || received_ != received || now - last_data_received_ns_ < 100'000'000;
    hold.unlock();
    if (changed && progress_) progress_();
    return is_busy;
  }

private:
  std::int64_t begin() { return polled_ns_ = monotonic_ns(); }
  std::uint64_t get_space() const {
    const std::uint64_t waiting = end_ - first_, most = std::min<std::uint64_t>(capacity_, window_ + (64 << 10));
    return waiting < most ? most - waiting : 0;
  }
  static std::uint32_t stamp_of(std::int64_t ns) { return std::uint32_t(ns / 1000); }

  void copy_in(char *ring, std::uint64_t offset, const char *from, std::size_t bytes) {
    const std::size_t at = offset % capacity_, first = std::min<std::uint64_t>(bytes, capacity_ - at);
    std::memcpy(ring + at, from, first);
    std::memcpy(ring, from + first, bytes - first);
  }

  // Moves what has arrived in order to the caller.
  std::size_t take(char *to, std::size_t bytes) {
    const std::size_t count = std::min<std::uint64_t>(bytes, received_ - taken_);
    const std::size_t at = taken_ % capacity_, first = std::min<std::uint64_t>(count, capacity_ - at);
    std::memcpy(to, in_ + at, first);
    std::memcpy(to + first, in_, count - first);
    taken_ += count;
    // The other rank may wait: its last news was that there is no space.
    if (count && announced_limit_ < received_ + most_window_ / 2 && taken_ + most_window_ > announced_limit_ + most_window_ / 4)
      must_ack_ = ack_now_ = true;
    return count;
  }

  void read_path() {
    int mtu = 0;
    socklen_t length = sizeof mtu;
    if (getsockopt(fd_, is_v6_ ? int(IPPROTO_IPV6) : int(IPPROTO_IP), is_v6_ ? IPV6_MTU : IP_MTU, &mtu, &length) || mtu <= 0) mtu = 1280;
    const std::size_t longest = std::size_t(std::max(mtu, 576)) - (is_v6_ ? 48 : 28) - kHeader;
    payload_ = std::min(longest, std::min<std::size_t>(kMostPayload, most_payload_));
  }

  // ---- receiving

  void receive(std::int64_t now) {
    alignas(8) char control[64];
    for (std::uint64_t bytes = 0; bytes < kReadAtOnce;) {
      iovec piece{scratch_.data(), scratch_.size()};
      msghdr message{};
      message.msg_iov = &piece, message.msg_iovlen = 1;
      message.msg_control = control, message.msg_controllen = sizeof control;
      const ssize_t got = recvmsg(fd_, &message, MSG_DONTWAIT);
      if (got < 0) {
        if (errno == EINTR) continue;
        if (errno == ECONNREFUSED) is_closed_ = true; // the other rank has no socket any more
        if (errno == EMSGSIZE) read_path();
        break;
      }
      std::size_t one = std::size_t(got); // of each packet that the kernel has joined
      for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
          int size;
          std::memcpy(&size, CMSG_DATA(c), sizeof size);
          if (size > 0) one = std::size_t(size);
        }
      for (std::size_t at = 0; at < std::size_t(got); at += one) take_packet(scratch_.data() + at, std::min(one, std::size_t(got) - at), now);
      bytes += std::size_t(got);
      if (got == 0) break;
    }
  }

  void take_packet(const char *packet, std::size_t bytes, std::int64_t now) {
    PacketHeader h;
    if (bytes < kHeader) {
      ++strangers_;
      return;
    }
    std::memcpy(&h, packet, kHeader);
    const std::size_t signed_bytes = h.kind == kData ? kHeader : bytes;
    if (signed_bytes % 8 || h.tag != make_tag(receive_key_, packet, signed_bytes) || h.kind < kData || h.kind > kClose || h.acknowledged > next_ || h.acknowledged + capacity_ < first_) {
      ++strangers_;
      return;
    }
    last_received_ns_ = now;
    if (h.flags & kAckNow) must_ack_ = ack_now_ = true;
    if (h.kind == kData) echo_ = h.stamp, echo_ns_ = now, has_echo_ = true;
    if (h.flags & kHasEcho) measure(std::uint32_t(stamp_of(now) - h.echo), now);
    if (h.repeats != their_repeats_) { // the last repetitions came too early: wait longer for packets that overtake others
      their_repeats_ = h.repeats;
      probe_backoff_ = std::min(probe_backoff_ * 2, 16.);
    }
    limit_ = std::max(limit_, h.acknowledged + std::uint64_t(h.window) * 256);
    acknowledge(h, packet + kHeader, h.kind == kAck ? (bytes - kHeader) / 16 : 0, now);
    if (h.kind == kData) take_data(h.offset, packet + kHeader, bytes - kHeader);
    if (h.kind == kHeartbeat) must_ack_ = ack_now_ = true;
    if (h.kind == kClose) is_closed_ = true; // it waited until its data had arrived
    if (h.kind == kData) last_data_received_ns_ = now;
  }

  void take_data(std::uint64_t offset, const char *data, std::size_t bytes) {
    std::uint64_t end = offset + bytes;
    must_ack_ = true;
    if (!bytes || end < offset || end > taken_ + place_bytes_ + capacity_) return; // beyond what this rank allowed
    if (end <= received_ || has_piece(offset, end)) {
      ++repeats_;
      ack_now_ = true;
      return;
    }
    const bool is_direct = place_ && offset <= received_ && received_ == taken_ && pieces_.empty() && place_bytes_;
    if (!is_direct && end > taken_ + capacity_) return;
    if (offset < received_) data += received_ - offset, bytes -= received_ - offset, offset = received_;
    unacked_ += bytes;
    if (unacked_ >= 2 * bytes) ack_now_ = true;
    if (offset == received_) {
      if (is_direct) { // straight to the caller
        const std::size_t some = std::min(bytes, place_bytes_);
        std::memcpy(place_, data, some);
        place_ += some, place_bytes_ -= some, received_ += some, taken_ += some;
        if (some < bytes) copy_in(in_, received_, data + some, bytes - some), received_ += bytes - some;
        return;
      }
      copy_in(in_, offset, data, bytes);
      received_ = end;
      while (!pieces_.empty() && pieces_.front().first <= received_) {
        received_ = std::max(received_, pieces_.front().second);
        pieces_.pop_front();
      }
      if (!pieces_.empty()) ack_now_ = true;
      return;
    }
    ack_now_ = true; // something before it is missing
    copy_in(in_, offset, data, bytes);
    auto at = std::lower_bound(pieces_.begin(), pieces_.end(), std::make_pair(offset, end));
    if (at != pieces_.begin() && std::prev(at)->second >= offset) --at;
    else at = pieces_.insert(at, {offset, end});
    at->second = std::max(at->second, end);
    newest_piece_ = at->first;
    for (auto next = at + 1; next != pieces_.end() && next->first <= at->second; next = pieces_.erase(next), at = next - 1)
      at->second = std::max(at->second, next->second);
  }

  bool has_piece(std::uint64_t offset, std::uint64_t end) const {
    for (const auto &piece : pieces_)
      if (piece.first <= offset && piece.second >= end) return true;
    return false;
  }

  // ---- what the other rank has

  void measure(std::uint32_t us, std::int64_t now) {
    if (us > 60'000'000) return; // no echo of this clock
    const std::int64_t ns = std::max<std::int64_t>(std::int64_t(us) * 1000, 1000);
    if (!smooth_rtt_ns_) smooth_rtt_ns_ = ns, rtt_spread_ns_ = ns / 2;
    else {
      rtt_spread_ns_ += (std::abs(smooth_rtt_ns_ - ns) - rtt_spread_ns_) / 4;
      smooth_rtt_ns_ += (ns - smooth_rtt_ns_) / 8;
    }
    last_rtt_ns_ = ns;
    if (ns <= least_rtt_ns_ || now - least_rtt_at_ns_ > 10'000'000'000) least_rtt_ns_ = ns, least_rtt_at_ns_ = now;
  }

  void note_arrival(Segment &segment, std::uint64_t &bytes) {
    if (!segment.has_arrived) {
      segment.has_arrived = true;
      bytes += segment.length;
      if (segment.is_lost) --lost_, segment.is_lost = false;
      else on_way_ -= segment.length;
    }
    if (segment.sent_ns > newest_arrived_ns_) newest_arrived_ns_ = segment.sent_ns;
  }

  void acknowledge(const PacketHeader &h, const char *ranges, std::size_t count, std::int64_t now) {
    std::uint64_t bytes = 0;
    while (!segments_.empty() && segments_.front().offset + segments_.front().length <= h.acknowledged) {
      note_arrival(segments_.front(), bytes);
      segments_.pop_front();
    }
    if (h.acknowledged > first_) first_ = h.acknowledged, timeouts_ = 0;
    for (std::size_t k = 0; k < count; ++k) {
      std::uint64_t range[2];
      std::memcpy(range, ranges + 16 * k, 16);
      if (range[0] >= range[1] || range[1] > next_) continue;
      auto at = std::lower_bound(segments_.begin(), segments_.end(), range[0],
                                 [](const Segment &s, std::uint64_t offset) { return s.offset < offset; });
      for (; at != segments_.end() && at->offset + at->length <= range[1]; ++at) note_arrival(*at, bytes);
    }
    if (!bytes) return;
    progress_ns_ = now;
    find_lost(now);
    if (first_ >= recovery_) grow(bytes, now);
  }

  std::int64_t reorder_ns() const {
    return std::int64_t(double(std::max<std::int64_t>(smooth_rtt_ns_ / 4, 100'000)) * probe_backoff_);
  }

  // A packet is lost if one that was sent later has arrived, and it had time to be overtaken.
  void find_lost(std::int64_t now) {
    recheck_ns_ = 0;
    const std::int64_t rtt = std::max(last_rtt_ns_, smooth_rtt_ns_);
    for (Segment &segment : segments_) {
      if (segment.has_arrived || segment.is_lost) continue;
      if (segment.sent_ns >= newest_arrived_ns_) {
        if (!segment.tries) break; // those behind it were sent later
        continue;
      }
      const std::int64_t at = segment.sent_ns + rtt + reorder_ns();
      if (at <= now) lose(segment);
      else if (!recheck_ns_ || at < recheck_ns_) recheck_ns_ = at;
    }
  }

  void lose(Segment &segment) {
    segment.is_lost = true;
    ++lost_;
    on_way_ -= segment.length;
    if (segment.offset >= recovery_) { // once for each window
      recovery_ = next_;
      shrink_window();
    }
  }

  void shrink_window() {
    const double w = double(window_);
    most_before_ = w < most_before_ ? w * (1 + kBeta) / 2 : w;
    // Losses without a queue are no sign of congestion: then the window stays large enough for a path that loses packets.
    const bool has_queue = smooth_rtt_ns_ > 2 * least_rtt_ns_ + 5'000'000;
    window_ = std::uint64_t(std::max(w * kBeta, (has_queue ? 4. : 32.) * double(payload_)));
    slow_start_until_ = window_;
    epoch_ns_ = 0;
  }

  void grow(std::uint64_t bytes, std::int64_t now) {
    if (on_way_ + bytes + 4 * payload_ < window_ * 3 / 4) return; // the caller, not the path, is the limit
    const double one = double(payload_);
    if (window_ < slow_start_until_) {
      // Ends when a queue builds up (HyStart): a window that overflows it would lose all of its end.
      if (least_rtt_ns_ && last_rtt_ns_ > least_rtt_ns_ + std::max<std::int64_t>(least_rtt_ns_ / 2, 8'000'000)) slow_start_until_ = window_;
      window_ += bytes;
    } else {
      if (!epoch_ns_) {
        epoch_ns_ = now;
        most_before_ = std::max(most_before_, double(window_));
        wait_s_ = std::cbrt((most_before_ - double(window_)) / one / kCubic);
        reno_ = double(window_);
      }
      const double t = double(now - epoch_ns_) * 1e-9 + double(smooth_rtt_ns_) * 1e-9 - wait_s_;
      const double target = std::min(kCubic * t * t * t * one + most_before_, 1.5 * double(window_));
      reno_ += (reno_ < most_before_ ? 3 * (1 - kBeta) / (1 + kBeta) : 1.) * one * double(bytes) / double(window_);
      double next_window = double(window_);
      if (target > next_window) next_window += (target - next_window) * double(bytes) / double(window_);
      window_ = std::uint64_t(std::max(next_window, std::min(reno_, double(window_) + double(bytes))));
    }
    window_ = std::min<std::uint64_t>(window_, capacity_);
  }

  // ---- sending

  void update(std::int64_t now) {
    if (is_closed_) return;
    if (recheck_ns_ && now >= recheck_ns_) find_lost(now);
    check_timeout(now);
    send_data(now);
    if (segments_.empty() && next_ < end_ && limit_ <= next_ && now - sent_ns_ > 2 * kTickNs) send_short(kHeartbeat, kAckNow, now); // is there space?
    if (must_ack_ && (ack_now_ || now - acked_ns_ >= kAckDelayNs)) send_short(kAck, 0, now);
  }

  std::int64_t timeout_ns() const { // without news of what is on the way
    const std::int64_t rtt = smooth_rtt_ns_ ? smooth_rtt_ns_ + 4 * rtt_spread_ns_ : 100'000'000;
    return (std::max<std::int64_t>(rtt, 1'000'000) + 2 * kTickNs) << std::min(timeouts_, 5);
  }

  void check_timeout(std::int64_t now) {
    if (!on_way_ || now - std::max(progress_ns_, last_data_ns_) < timeout_ns()) return;
    ++timeouts_;
    if (timeouts_ >= 3 && payload_ > kLeastPayload && segments_.front().length > kLeastPayload) {
      most_payload_ = kLeastPayload; // perhaps the path drops long packets without a word
      read_path();
    }
    if (timeouts_ >= 2) { // nothing got through: repeat all, slowly
      for (Segment &segment : segments_)
        if (!segment.has_arrived && !segment.is_lost) segment.is_lost = true, ++lost_, on_way_ -= segment.length;
      if (timeouts_ == 2) shrink_window();
      slow_start_until_ = std::max<std::uint64_t>(window_, 4 * payload_);
      window_ = 4 * payload_, recovery_ = next_;
    } else { // the last packet that is missing: its acknowledgement tells about all others
      for (auto at = segments_.rbegin(); at != segments_.rend(); ++at)
        if (!at->has_arrived && !at->is_lost) {
          at->is_lost = true, ++lost_, on_way_ -= at->length;
          break;
        }
    }
    progress_ns_ = now;
  }

  double bytes_per_ns() const {
    const std::int64_t rtt = std::max<std::int64_t>(smooth_rtt_ns_, 20'000);
    // More than the window in a round trip, or the window would never be full; much more in a slow start, which doubles it.
    return (window_ < slow_start_until_ ? 2. : 1.25) * double(window_) / double(rtt);
  }

  void send_data(std::int64_t now) {
    const double rate = bytes_per_ns(), burst = std::max(double(128 << 10), rate * 1e6);
    credit_ = std::min(burst, credit_ + rate * double(now - credited_ns_));
    credited_ns_ = now;
    if (lost_) repeat_lost(now);
    while (next_ < end_ && on_way_ < window_ && credit_ > 0 && can_send_) {
      const std::uint64_t sendable = std::min({end_ - next_, window_ - on_way_, std::uint64_t(credit_) + payload_,
                                           limit_ > next_ ? limit_ - next_ : 0});
      if (!sendable || (sendable < payload_ && sendable < end_ - next_ && !segments_.empty())) break; // a short packet only at the end
      batch_.clear();
      std::uint64_t left = sendable, at = next_;
      while (left && batch_.size() < kMostTogether) {
        const std::uint32_t length = std::uint32_t(std::min<std::uint64_t>(left, payload_));
        batch_.push_back({at, length, false, false, 0, order_ns_ = std::max(now, order_ns_ + 1)}); // packets of one call keep an order
        at += length, left -= length;
      }
      const std::size_t sent = send_batch(now);
      for (std::size_t k = 0; k < sent; ++k) {
        segments_.push_back(batch_[k]);
        next_ += batch_[k].length, on_way_ += batch_[k].length, credit_ -= batch_[k].length;
      }
      if (sent < batch_.size()) break;
    }
    can_send_ = true;
  }

  void repeat_lost(std::int64_t now) {
    for (std::size_t k = 0; k < segments_.size() && lost_ && on_way_ < window_ && credit_ > 0; ++k) {
      if (!segments_[k].is_lost) continue;
      if (segments_[k].length > payload_) { // the path has become narrower
        Segment rest = segments_[k];
        segments_[k].length = std::uint32_t(payload_);
        rest.offset += payload_, rest.length -= std::uint32_t(payload_);
        segments_.insert(segments_.begin() + std::ptrdiff_t(k) + 1, rest);
        ++lost_;
      }
      Segment &segment = segments_[k];
      batch_.assign(1, segment);
      if (!send_batch(now)) return;
      segment.is_lost = false, segment.sent_ns = order_ns_ = std::max(now, order_ns_ + 1), ++segment.tries;
      --lost_, ++repetitions_;
      on_way_ += segment.length, credit_ -= segment.length;
      repeated_ns_ = now;
    }
  }

  PacketHeader make_header(PacketKind kind, std::uint64_t offset, std::int64_t now) {
    const std::uint32_t echo = echo_ + stamp_of(now) - stamp_of(echo_ns_); // without the time that it waited here
    PacketHeader h{0, offset, received_, stamp_of(now), echo, 0, kind, std::uint8_t(has_echo_ ? kHasEcho : 0), repeats_};
    const std::uint64_t limit = std::max(taken_ + most_window_, received_);
    h.window = std::uint32_t((limit - received_) / 256);
    announced_limit_ = received_ + std::uint64_t(h.window) * 256;
    return h;
  }

  // Sends the packets of `batch_`, all but the last equally long; returns how many the kernel took.
  std::size_t send_batch(std::int64_t now) {
    std::size_t sent = 0;
    while (sent < batch_.size()) {
      const std::size_t most = has_gso_ ? std::min(kMostTogether, (std::size_t(65000)) / (payload_ + kHeader)) : 1;
      const std::size_t count = std::min(std::max<std::size_t>(most, 1), batch_.size() - sent);
      iovec pieces[3 * kMostTogether];
      int used = 0;
      for (std::size_t k = 0; k < count; ++k) {
        const Segment &s = batch_[sent + k];
        headers_[k] = make_header(kData, s.offset, now);
        if (s.tries || s.is_lost || (s.offset + s.length == end_ && repeated_ns_ && now - repeated_ns_ < kLossyNs)) headers_[k].flags |= kAckNow;
        headers_[k].tag = make_tag(send_key_, reinterpret_cast<const char *>(&headers_[k]), kHeader);
        pieces[used++] = {&headers_[k], kHeader};
        const std::size_t at = s.offset % capacity_, first = std::min<std::uint64_t>(s.length, capacity_ - at);
        pieces[used++] = {out_ + at, first};
        if (first < s.length) pieces[used++] = {out_, s.length - first};
      }
      msghdr message{};
      message.msg_iov = pieces, message.msg_iovlen = std::size_t(used);
      alignas(8) char control[CMSG_SPACE(sizeof(std::uint16_t))] = {};
      if (count > 1) {
        message.msg_control = control, message.msg_controllen = sizeof control;
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_UDP, c->cmsg_type = UDP_SEGMENT, c->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const std::uint16_t size = std::uint16_t(batch_[sent].length + kHeader);
        std::memcpy(CMSG_DATA(c), &size, sizeof size);
      }
      if (sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (errno == EINTR) continue;
        if (count > 1 && (errno == EIO || errno == EINVAL || errno == ENOPROTOOPT || errno == EOPNOTSUPP)) {
          has_gso_ = false; // this interface cannot cut packets
          continue;
        }
        if (errno == ECONNREFUSED) is_closed_ = true;
        if (errno == EMSGSIZE) { // the path has become narrower
          const std::size_t before = payload_;
          read_path();
          if (payload_ == before && payload_ > kLeastPayload) most_payload_ = std::max(kLeastPayload, payload_ * 3 / 4), read_path();
          for (Segment &segment : segments_)
            if (segment.length > payload_ && !segment.has_arrived && !segment.is_lost) segment.is_lost = true, ++lost_, on_way_ -= segment.length;
        }
        can_send_ = false;
        return sent;
      }
      sent += count;
      last_data_ns_ = now;
      note_sent(now);
    }
    return sent;
  }

  void note_sent(std::int64_t now) { // every packet carries an acknowledgement, though not the ranges
    sent_ns_ = now;
    if (pieces_.empty()) must_ack_ = ack_now_ = false, unacked_ = 0, acked_ns_ = now;
    has_echo_ = false;
  }

  void send_short(PacketKind kind, std::uint8_t flags, std::int64_t now) {
    char packet[kHeader + 16 * kMostRanges];
    PacketHeader h = make_header(kind, kind == kClose ? end_ : 0, now);
    h.flags |= flags;
    std::memcpy(packet, &h, kHeader);
    std::size_t bytes = kHeader;
    if (kind == kAck) {
      auto add = [&](const std::pair<std::uint64_t, std::uint64_t> &piece) {
        std::memcpy(packet + bytes, &piece.first, 8);
        std::memcpy(packet + bytes + 8, &piece.second, 8);
        bytes += 16;
      };
      // The newest first: what arrived last says most about what is lost.
      for (const auto &piece : pieces_)
        if (piece.first <= newest_piece_ && newest_piece_ < piece.second) add(piece);
      for (std::size_t k = 0; k < pieces_.size() && bytes + 16 <= sizeof packet; ++k) add(pieces_[k]);
    }
    const std::uint64_t tag = make_tag(send_key_, packet, bytes);
    std::memcpy(packet, &tag, sizeof tag);
    if (::send(fd_, packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      if (errno == ECONNREFUSED) is_closed_ = true;
      return; // the next one says more
    }
    sent_ns_ = now;
    has_echo_ = false;
    if (kind == kAck) must_ack_ = ack_now_ = false, unacked_ = 0, acked_ns_ = now;
  }

  mutable std::mutex lock_;
  const int fd_;
  const std::uint64_t send_key_, receive_key_;
  const DatagramOptions options_;
  const std::function<void()> progress_;
  const pid_t process_;
  const std::uint64_t capacity_;
  char *memory_, *out_, *in_;
  std::vector<char> scratch_;
  bool is_v6_ = false, is_closed_ = false, has_ended_ = false;
  std::int64_t polled_ns_ = 0, last_received_ns_ = 0, last_data_received_ns_ = 0, sent_ns_ = 0;

  // Receiving: bytes before taken_ are with the caller, those before received_ are complete, pieces_ lie beyond.
  std::uint64_t taken_ = 0, received_ = 0, most_window_ = 0, announced_limit_ = 0, newest_piece_ = 0, unacked_ = 0;
  std::deque<std::pair<std::uint64_t, std::uint64_t>> pieces_;
  char *place_ = nullptr;
  std::size_t place_bytes_ = 0;
  bool must_ack_ = false, ack_now_ = false, has_echo_ = false;
  std::uint32_t echo_ = 0;
  std::int64_t echo_ns_ = 0;
  std::uint16_t repeats_ = 0, their_repeats_ = 0;
  std::int64_t acked_ns_ = 0;
  std::uint64_t strangers_ = 0;

  // Sending: bytes before first_ have arrived, those before next_ were sent, those before end_ were given by the caller.
  std::uint64_t first_ = 0, next_ = 0, end_ = 0, limit_ = 64 << 10, on_way_ = 0, recovery_ = 0;
  std::deque<Segment> segments_;
  std::vector<Segment> batch_;
  PacketHeader headers_[kMostTogether];
  std::size_t lost_ = 0, payload_ = kLeastPayload, most_payload_ = kMostPayload;
  bool has_gso_ = true, can_send_ = true;
  std::uint64_t window_ = 0, slow_start_until_ = ~0ull, repetitions_ = 0;
  double most_before_ = 0, wait_s_ = 0, reno_ = 0, credit_ = 1 << 17, probe_backoff_ = 1;
  std::int64_t epoch_ns_ = 0, credited_ns_ = 0, smooth_rtt_ns_ = 0, rtt_spread_ns_ = 0, last_rtt_ns_ = 0;
  std::int64_t least_rtt_ns_ = ~(1ull << 63), least_rtt_at_ns_ = 0, newest_arrived_ns_ = 0, recheck_ns_ = 0;
  std::int64_t order_ns_ = 0, progress_ns_ = 0, last_data_ns_ = 0, repeated_ns_ = 0;
  int timeouts_ = 0;
};

} // namespace

std::unique_ptr<Stream> make_datagram_stream(int fd, std::uint64_t send_key, std::uint64_t receive_key, DatagramOptions options,
                                             std::function<void()> progress) {
  return std::make_unique<DatagramStream>(fd, send_key, receive_key, options, std::move(progress));
}

} // namespace ridgeline
