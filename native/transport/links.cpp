#include "transport/links.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sched.h>
#include <unistd.h>

#include "transport/datagram.hpp"

namespace ridgeline {
namespace {

constexpr std::size_t kBuffer = 16 << 10; // a short frame arrives with its data in one read
constexpr int kPieces = 64;

} // namespace

Links::Links(int me, std::vector<LinkFiles> files, std::shared_ptr<UcxWorker> ucx)
    : me_(me), ucx_(std::move(ucx)), peers_(files.size()), trash_(64 << 10) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || wake_ < 0) throw std::runtime_error("no more files can be opened: raise ulimit -n");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
  if (ucx_) { // its events end when they are moved, in the next round
    event.data.ptr = ucx_.get();
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, ucx_->fd(), &event)) throw std::runtime_error("UCX cannot be waited for with these transports");
  }
  for (int rank = 0; rank < int(files.size()); ++rank) {
    if (rank == me) continue;
    LinkFiles &one = files[rank];
    Peer &peer = peers_[rank];
    peer.transport = one.transport;
    auto make = [&](int fd, std::size_t number) -> std::unique_ptr<Stream> {
      if (one.transport == Transport::shm && number) return make_shared_stream(fd, one.memory.at(number - 1), me < rank);
      if (one.transport == Transport::ucx && number) {
        const auto [send_key, receive_key] = one.keys.at(0);
        return ucx_->make_stream(rank, int(number), one.address, send_key + number, receive_key + number);
      }
      if (one.transport != Transport::udp) return make_socket_stream(fd, one.transport != Transport::shm);
      DatagramOptions options;
      if (!number) options.buffer_bytes = 64 << 10;
      return make_datagram_stream(fd, one.keys.at(number).first, one.keys.at(number).second, options, [this] { wake(); });
    };
    add(peer.control, rank, make(one.control, 0), true);
    lanes_ = int(one.lanes.size() / 2);
    for (std::size_t k = 0; k < one.lanes.size(); ++k) {
      peer.lanes.emplace_back();
      add(peer.lanes.back(), rank, make(one.lanes[k], k + 1), false);
    }
    for (CallSlot &slot : peer.slots) slot.data.resize(sizeof(CallFrame) + kInline);
  }
  if (ucx_) ucx_->start(me, [this] { wake(); });
}

Links::~Links() {
  all_.clear();
  peers_.clear(); // their threads call wake()
  ucx_.reset();
  if (epoll_ >= 0) close(epoll_);
  if (wake_ >= 0) close(wake_);
}

void Links::add(std::unique_ptr<Lane> &lane, int rank, std::unique_ptr<Stream> stream, bool is_control) {
  lane = std::make_unique<Lane>();
  lane->stream = std::move(stream);
  lane->rank = rank, lane->is_control = is_control;
  lane->needs_polling = lane->stream->needs_polling();
  polls_ = polls_ || lane->needs_polling;
  lane->buffer.resize(is_control ? 1024 : kBuffer);
  all_.push_back(lane.get());
  if (lane->stream->fd() < 0) return;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = lane.get();
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, lane->stream->fd(), &event)) throw std::runtime_error("a stream cannot be watched");
}

StreamState Links::state(int rank) const {
  StreamState sum;
  int measured = 0;
  for (const auto &lane : peers_[rank].lanes) {
    const StreamState one = lane->stream->state();
    sum.retransmissions += one.retransmissions, sum.strangers += one.strangers;
    if (one.rtt_ns) sum.rtt_ns += one.rtt_ns, ++measured;
  }
  if (measured) sum.rtt_ns /= measured;
  return sum;
}

void Links::end(bool lingers) {
  constexpr std::int64_t kLingerNs = 2'000'000'000;
  for (const std::int64_t until = monotonic_ns() + (lingers && polls_ ? kLingerNs : 0); monotonic_ns() < until; usleep(200))
    if (std::all_of(all_.begin(), all_.end(), [](Lane *lane) { return lane->is_write_closed || lane->stream->is_flushed(); })) break;
  for (Lane *lane : all_) lane->stream->end();
}

void Links::settle() {
  if (!polls_) return;
  constexpr std::int64_t kSettleNs = 300'000'000;
  constexpr std::int64_t kSpinNs = 50'000;
  const std::int64_t start = monotonic_ns(), until = start + kSettleNs;
  for (Lane *lane : all_) {
    if (lane->is_control || lane->is_write_closed || !lane->needs_polling || !lane->stream->should_settle()) continue;
    while (!lane->stream->is_flushed() && monotonic_ns() < until)
      if (monotonic_ns() - start > kSpinNs) usleep(100);
  }
}

void Links::drop_calls() {
  for (Lane *lane : all_)
    if (!lane->is_control) lane->posted.clear(), lane->queue.clear(), lane->target = nullptr, lane->is_closed = lane->is_write_closed = true, lane->may_read = lane->may_write = false;
}

void Links::lose(Lane &lane, bool writes) {
  if (writes) lane.is_write_closed = true, lane.may_write = false;
  else lane.is_closed = true, lane.may_read = false;
  peers_[lane.rank].is_gone = true;
}

void Links::send_control(int rank, const Frame &frame, const void *data) {
  const iovec pieces[2] = {{const_cast<Frame *>(&frame), sizeof frame}, {const_cast<void *>(data), frame.length}};
  peers_[rank].control->stream->write(pieces, frame.length ? 2 : 1); // a full or closed stream: the rank is lost in any case
}

void Links::wake() {
  const std::uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) return; // full: the wait ends in any case
}

void Links::post(Lane &lane, Incoming *incoming) {
  if (incoming->length == 0 && !incoming->is_message) {
    incoming->has_started = true; // nothing is sent
    return;
  }
  lane.posted.push_back(incoming);
  lane.may_read = !lane.is_closed;
}

void Links::write(Lane &lane, Outgoing outgoing) {
  if (outgoing.unfinished) ++*outgoing.unfinished;
  lane.queue.push_back(std::move(outgoing));
  if (lane.queue.size() == 1) {
    lane.may_write = !lane.is_write_closed;
    flush(lane);
  }
}

void Links::write_copy(Lane &lane, const Frame &frame, const iovec *pieces, int count) {
  if (lane.is_write_closed) return; // a wait for this rank reports it
  std::size_t written = 0;
  if (lane.queue.empty()) {
    iovec all[kPieces];
    all[0] = {const_cast<Frame *>(&frame), sizeof frame};
    const int some = std::min(count, kPieces - 1);
    std::copy(pieces, pieces + some, all + 1);
    const ssize_t got = lane.stream->write(all, some + 1);
    if (got < 0) {
      lose(lane, true);
      return;
    }
    written = std::size_t(got);
    if (written == sizeof frame + frame.length) return;
  }
  Outgoing rest;
  rest.frame = frame, rest.written = written;
  rest.owned.reserve(frame.length);
  for (int k = 0; k < count; ++k) rest.owned.append(static_cast<const char *>(pieces[k].iov_base), pieces[k].iov_len);
  lane.queue.push_back(std::move(rest));
  lane.may_write = true;
}

bool Links::flush(Lane &lane) {
  bool moved = false;
  while (lane.may_write && !lane.queue.empty()) {
    Outgoing &first = lane.queue.front();
    const std::uint64_t length = first.frame.length;
    const char *data = first.base ? first.base : first.owned.data();
    const std::uint64_t available = first.ready ? std::min(*first.ready, length) : length;
    iovec pieces[2];
    int count = 0;
    if (first.written < sizeof(Frame))
      pieces[count++] = {reinterpret_cast<char *>(&first.frame) + first.written, sizeof(Frame) - first.written};
    const std::uint64_t at = first.written < sizeof(Frame) ? 0 : first.written - sizeof(Frame);
    if (available > at) pieces[count++] = {const_cast<char *>(data) + at, available - at};
    if (count) {
      const ssize_t got = lane.stream->write(pieces, count);
      if (got < 0) return lose(lane, true), moved;
      if (got == 0) {
        lane.may_write = false; // until an event
        return moved;
      }
      moved = true;
      first.written += std::size_t(got);
    }
    if (first.written == sizeof(Frame) + length) {
      if (first.unfinished) --*first.unfinished;
      lane.queue.pop_front();
    } else if (!count) {
      return moved; // until more is ready
    }
  }
  return moved;
}

// Where the next bytes go, and how many; 0 bytes: the place is not free yet.
std::pair<char *, std::size_t> Links::get_place(const Incoming &in) {
  const std::uint64_t left = in.length - in.received;
  if (in.discards) return {trash_.data(), std::min<std::uint64_t>(left, trash_.size())};
  if (!in.pieces.empty()) {
    const iovec &piece = in.pieces[in.piece];
    return {static_cast<char *>(piece.iov_base) + in.piece_at, piece.iov_len - in.piece_at};
  }
  if (!in.ring) return {in.base + in.received, left};
  const std::uint64_t free = in.limit > in.received ? in.limit - in.received : 0, at = in.received % in.ring;
  return {in.base + at, std::min({left, free, in.ring - at})};
}

// A frame has been read: find its place. False: it is not known yet.
bool Links::take_frame(Lane &lane) {
  const Frame &frame = lane.frame;
  const Failure garbled{Fault::garbled, lane.rank};
  Peer &peer = peers_[lane.rank];
  if (frame.magic != kFrameMagic) throw garbled;
  if (lane.is_control) {
    const bool fits = (frame.kind == std::uint8_t(FrameKind::failure) && frame.length == sizeof(FailureFrame)) ||
                      (frame.kind == std::uint8_t(FrameKind::waits) && frame.length == 0);
    if (!fits) throw garbled;
    lane.control = Incoming{};
    lane.control.base = lane.control_data, lane.control.length = frame.length, lane.control.has_started = true;
    lane.target = &lane.control;
    return true;
  }
  if (frame.kind == std::uint8_t(FrameKind::call)) {
    CallSlot &slot = peer.slots[frame.sequence % 2];
    const bool expected = frame.sequence == next_sequence || frame.sequence + 1 == next_sequence;
    if (!expected || slot.is_full || frame.length < sizeof(CallFrame) || frame.length > slot.data.size()) throw garbled;
    slot.incoming = Incoming{};
    slot.incoming.base = slot.data.data(), slot.incoming.length = frame.length, slot.incoming.has_started = true;
    lane.target = &slot.incoming;
    return true;
  }
  if (lane.posted.empty()) return false;
  Incoming &first = *lane.posted.front();
  if (first.is_message) {
    if (frame.kind != std::uint8_t(FrameKind::message) || frame.sequence != first.sequence || frame.length > frame.total ||
        frame.lanes < 1 || frame.lanes > lanes_)
      throw garbled;
    first.frame = frame;
    first.is_other = frame.index != first.index || frame.hash != first.hash || frame.total != first.total;
    if (first.is_other) first.discards = true;
    else if (frame.length != first.length && !first.discards) throw garbled;
    if (first.discards) first.length = frame.length;
  } else if (frame.kind != std::uint8_t(FrameKind::data) || frame.sequence != first.sequence || frame.index != first.index ||
             frame.length != first.length) {
    throw garbled;
  }
  first.has_started = true;
  lane.target = &first;
  lane.posted.pop_front();
  return true;
}

void Links::finish_frame(Lane &lane) {
  Peer &peer = peers_[lane.rank];
  const Frame frame = lane.frame;
  lane.has_frame = false, lane.target = nullptr;
  if (lane.is_control) {
    if (frame.kind == std::uint8_t(FrameKind::waits)) {
      peer.waits_for = frame.index;
    } else {
      FailureFrame failure;
      std::memcpy(&failure, lane.control_data, sizeof failure);
      if (failure.rank < -1 || failure.rank >= size() || failure.reported_by < 0 || failure.reported_by >= size() || failure.op > 8)
        throw Failure{Fault::garbled, lane.rank};
      if (on_failure) on_failure(lane.rank, failure);
    }
  } else if (frame.kind == std::uint8_t(FrameKind::call)) {
    CallSlot &slot = peer.slots[frame.sequence % 2];
    std::memcpy(static_cast<void *>(&slot.call), slot.data.data(), sizeof slot.call);
    slot.call.type_name[kTypeName - 1] = 0;
    if (slot.call.called.op > 8) throw Failure{Fault::garbled, lane.rank};
    slot.sequence = frame.sequence, slot.bytes = frame.length - sizeof(CallFrame), slot.stamp = monotonic_ns();
    slot.is_full = true;
  }
}

bool Links::read(Lane &lane) {
  bool moved = false;
  while (lane.may_read) {
    if (!lane.has_frame) {
      if (lane.end - lane.begin < sizeof(Frame)) {
        std::memmove(lane.buffer.data(), lane.buffer.data() + lane.begin, lane.end - lane.begin);
        lane.end -= lane.begin, lane.begin = 0;
        const ssize_t got = lane.stream->read(lane.buffer.data() + lane.end, lane.buffer.size() - lane.end);
        if (got < 0) return lose(lane, false), moved;
        if (got == 0) {
          lane.may_read = false; // until an event
          return moved;
        }
        lane.end += std::size_t(got);
        moved = true;
        continue;
      }
      std::memcpy(&lane.frame, lane.buffer.data() + lane.begin, sizeof(Frame));
      lane.begin += sizeof(Frame);
      lane.has_frame = true;
      lane.left = lane.frame.length;
    }
    if (!lane.target && !take_frame(lane)) return moved;
    while (lane.left) {
      Incoming &in = *lane.target;
      const auto [place, bytes] = get_place(in);
      std::size_t got = std::min<std::uint64_t>(bytes, lane.left);
      if (!got) return moved; // until the place is free
      if (lane.end > lane.begin) {
        got = std::min(got, lane.end - lane.begin);
        std::memcpy(place, lane.buffer.data() + lane.begin, got);
        lane.begin += got;
      } else {
        const ssize_t some = lane.stream->read(place, got);
        if (some < 0) return lose(lane, false), moved;
        if (some == 0) {
          lane.may_read = false;
          return moved;
        }
        got = std::size_t(some);
      }
      in.received += got, lane.left -= got;
      if (!in.pieces.empty() && (in.piece_at += got) == in.pieces[in.piece].iov_len) in.piece_at = 0, ++in.piece;
      moved = true;
    }
    finish_frame(lane);
    moved = true;
  }
  return moved;
}

bool Links::move_all() {
  bool moved = ucx_ && ucx_->poll();
  for (Lane *lane : all_) {
    if (lane->needs_polling && (lane->stream->fd() < 0 || !lane->queue.empty() || !lane->posted.empty() || lane->target))
      lane->may_read = !lane->is_closed, lane->may_write = !lane->is_write_closed;
    if (lane->may_write && !lane->queue.empty()) moved |= flush(*lane);
    if (lane->may_read) moved |= read(*lane);
  }
  return moved;
}

void Links::wait(std::int64_t ns) {
  bool can_wait = !ucx_ || ucx_->arm();
  for (Lane *lane : all_) {
    if (lane->is_closed) continue;
    // A lane that may read or write already was moved as far as its places allow: it is no reason to stay awake.
    const Stream::Ready ready = lane->stream->prepare_wait(!lane->queue.empty() && !lane->may_write);
    if (ready.read && !lane->may_read) lane->may_read = true, can_wait = false;
    if (ready.write && !lane->may_write) lane->may_write = true, can_wait = false;
    if (lane->needs_polling) ns = std::min(ns, lane->stream->longest_wait_ns());
  }
  epoll_event events[64];
  const int timeout = can_wait ? int(std::max<std::int64_t>(0, (ns + 999'999) / 1'000'000)) : 0;
  const int count = epoll_wait(epoll_, events, 64, timeout);
  for (int k = 0; k < count; ++k) {
    if (ucx_ && events[k].data.ptr == ucx_.get()) continue; // the next round moves it
    Lane *lane = static_cast<Lane *>(events[k].data.ptr);
    if (!lane) {
      std::uint64_t value;
      if (::read(wake_, &value, sizeof value) < 0) continue;
      continue;
    }
    lane->stream->clear_events();
    lane->may_read = !lane->is_closed, lane->may_write = !lane->is_write_closed;
  }
}

} // namespace ridgeline
