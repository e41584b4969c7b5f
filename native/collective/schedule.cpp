// Schedules, and send and recv, over channels: put a message, signal, wait.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "collective/collective.hpp"

namespace ridgeline {
namespace {

using Pieces = std::vector<std::pair<const char *, std::size_t>>;

// Makes a mean of the sum in `out`: the reduction of the sum and n − 1 arrays of zeros, divided by n.
void divide_sum(const ReduceLoops &loops, const Call &call, int n) {
  static const char zeros[4096] = {};
  const std::size_t one = size_of(call.type);
  char *out = static_cast<char *>(call.out);
  const std::uint64_t step = sizeof zeros / one;
  std::vector<const void *> from(n, zeros);
  for (std::uint64_t at = 0; at < call.count; at += step) {
    from[0] = out + at * one;
    loops.reduce(out + at * one, from.data(), n, std::min(step, call.count - at), call.type, Combine::avg);
  }
}

} // namespace

ChunkedData::ChunkedData(const Call &call, const Program &program, int ranks, int me, std::size_t message_bytes)
    : call_(call), ranks_(ranks), me_(me), chunks_(program.chunks),
      has_blocks_(call.op == Op::all_gather || call.op == Op::reduce_scatter), one_(size_of(call.type)), block_(call.count * one_),
      bytes_(has_blocks_ ? block_ * std::size_t(ranks) : block_) {
  const int widest = program.widest;
  if (widest < 1 || std::size_t(widest) * one_ > message_bytes) throw std::invalid_argument("a step has too many chunks");
  if (chunks_ < 1 || (has_blocks_ && chunks_ % ranks)) throw std::invalid_argument("the chunks do not fit the ranks");
  for (std::size_t k = 0; k < program.rows; ++k) {
    const std::int32_t *s = program.steps + 4 * k;
    const bool copies = s[0] == copy_step;
    if (s[3] < 1 || s[3] > widest || s[2] < 0 || s[2] > chunks_ - s[3] || (copies && (s[1] < 0 || s[1] > chunks_ - s[3])))
      throw std::invalid_argument("a step names an invalid chunk");
    if (!copies && (s[1] < 0 || s[1] >= ranks || s[1] == me)) throw std::invalid_argument("a step names an invalid rank");
  }
  per_ = has_blocks_ ? chunks_ / ranks : chunks_;
  longest_ = (call.count + std::uint64_t(per_) - 1) / std::uint64_t(per_);
  cut_ = message_bytes / one_ / std::uint64_t(widest);
}

std::uint64_t ChunkedData::begin_of(std::int64_t chunk) const {
  const std::uint64_t c = std::uint64_t(chunk), per = std::uint64_t(per_);
  return has_blocks_ ? c / per * call_.count + c % per * call_.count / per : c * call_.count / std::uint64_t(chunks_);
}

void ChunkedData::begin(std::vector<char> &scratch) {
  const bool in_scratch = call_.op == Op::reduce_scatter || call_.op == Op::reduce; // `out` must not show the parts of other ranks
  if (in_scratch) scratch.resize(std::max(scratch.size(), bytes_));
  data_ = in_scratch ? scratch.data() : static_cast<char *>(call_.out);
  char *const first = call_.op == Op::all_gather ? data_ + std::size_t(me_) * block_ : data_;
  const std::size_t given = call_.op == Op::reduce_scatter ? bytes_ : block_;
  if (call_.in != first && given && (call_.op != Op::broadcast || me_ == call_.root)) std::memmove(first, call_.in, given);
}

std::pair<char *, std::uint64_t> ChunkedData::piece(std::int64_t chunk) const {
  const std::uint64_t from = begin_of(chunk) + low_, end = std::min(from + cut_, begin_of(chunk + 1));
  return {data_ + from * one_, end > from ? end - from : 0};
}

void ChunkedData::copy(std::int64_t from, std::int64_t to, std::int32_t width) const {
  for (std::int32_t c = 0; c < width; ++c) {
    const auto [target, count] = piece(to + c);
    const auto [source, available] = piece(from + c);
    std::memmove(target, source, std::min(count, available) * one_);
  }
}

void ChunkedData::reduce(const ReduceLoops &loops, std::int64_t chunk, std::int32_t width, const char *from) const {
  const Combine how = call_.how == Combine::avg ? Combine::sum : call_.how;
  for (std::int64_t c = chunk; c < chunk + width; ++c) {
    const auto [to, count] = piece(c);
    const void *both[2] = {to, from};
    if (count) loops.reduce(to, both, 2, count, call_.type, how);
    from += count * one_;
  }
}

void ChunkedData::finish(const ReduceLoops &loops) const {
  char *const out = static_cast<char *>(call_.out);
  if (call_.op == Op::reduce_scatter && block_) std::memcpy(out, data_ + std::size_t(me_) * block_, block_);
  if (call_.op == Op::reduce && me_ == call_.root && block_) std::memcpy(out, data_, block_);
  if (call_.how == Combine::avg && (call_.op != Op::reduce || me_ == call_.root)) divide_sum(loops, call_, ranks_);
}

void Collective::put(int set, int to, const Pieces &pieces) {
  const int from = members_[me_], target = members_[to];
  Channel &channel = segment_.channel(set, from, target);
  const std::uint32_t number = channel.sent.load(std::memory_order_relaxed);
  waiter.until(channel.taken, channel.taken_waiters, number + 1 - kChannelMessages, target);
  char *at = segment_.fragment(set, from, target, number);
  std::size_t bytes = 0;
  for (const auto &[data, length] : pieces) {
    std::memcpy(at + bytes, data, length);
    bytes += length;
  }
  Waiter::raise(channel.sent, channel.sent_waiters, number + 1);
}

// No message is larger than a fragment. So a channel holds complete messages, as the verification of a schedule assumes.
void Collective::run(const Call &call, const Program &program) {
  const std::size_t one = size_of(call.type);
  ChunkedData data(call, program, size(), me_, kFragment);
  start(call.op, sequence_, call.timeout_ns);
  arrive(call, program.algorithm, program.schedule_hash, true, 0);
  for (data.begin(scratch_); data.has_cut(); data.next_cut()) {
    for (std::size_t k = 0; k < program.rows; ++k) {
      const std::int32_t *const step = program.steps + 4 * k;
      const std::int32_t kind = step[0], peer = step[1], chunk = step[2], width = step[3];
      if (kind == send_step) {
        Pieces pieces;
        for (std::int32_t c = chunk; c < chunk + width; ++c) {
          const auto [at, count] = data.piece(c);
          pieces.emplace_back(at, count * one);
        }
        put(0, peer, pieces);
        continue;
      }
      if (kind == copy_step) {
        data.copy(peer, chunk, width);
        continue;
      }
      Channel &channel = segment_.channel(0, members_[peer], members_[me_]);
      const std::uint32_t number = channel.taken.load(std::memory_order_relaxed);
      waiter.until(channel.sent, channel.sent_waiters, number + 1, members_[peer]);
      const char *from = segment_.fragment(0, members_[peer], members_[me_], number);
      if (kind == reduce_step) data.reduce(loops_, chunk, width, from);
      for (std::int32_t c = chunk; kind == recv_step && c < chunk + width; ++c) {
        const auto [to, count] = data.piece(c);
        std::memcpy(to, from, count * one);
        from += count * one;
      }
      Waiter::raise(channel.taken, channel.taken_waiters, number + 1);
    }
  }
  data.finish(loops_);
  Usage &u = usage[int(call.op)];
  u.calls++, u.bytes += data.bytes(), u.ns += monotonic_ns() - start_ns_;
}

void Collective::send(const void *from, std::uint64_t bytes, Number type, int to, std::int64_t timeout_ns, const char *type_name) {
  const char *data = static_cast<const char *>(from);
  Mail &mail = segment_.mail(members_[me_], members_[to]);
  const std::uint32_t number = mail.sent;
  start(Op::send, number, timeout_ns);
  if (number - mail.known >= kCells) {
    waiter.until(mail.taken, mail.taken_waiters, number + 1 - kCells, members_[to]);
    mail.known = mail.taken.load(std::memory_order_acquire);
  }
  Cell &cell = mail.cells[number % kCells];
  const bool fits = bytes <= sizeof cell.data;
  if (fits && bytes) { // the line that the receiver polls comes last, so that it moves once
    constexpr std::size_t first_line = 64 - offsetof(Cell, data);
    if (bytes > first_line) std::memcpy(cell.data + first_line, data + first_line, bytes - first_line);
    std::memcpy(cell.data, data, std::min<std::size_t>(first_line, bytes));
  }
  cell.type = std::uint64_t(type) | std::uint64_t(hash_type(type, type_name)) << 32;
  cell.bytes = bytes;
  mail.sent = number + 1;
  Waiter::raise(cell.number, cell.waiters, number + 1);
  for (std::uint64_t at = 0; !fits && at < bytes; at += kFragment)
    put(1, to, {{data + at, std::min<std::uint64_t>(kFragment, bytes - at)}});
  Usage &u = usage[int(Op::send)];
  u.calls++, u.bytes += bytes, u.ns += monotonic_ns() - start_ns_;
}

void Collective::receive(void *to, std::uint64_t bytes, Number type, int from, std::int64_t timeout_ns, const char *type_name) {
  const int source = members_[from], me = members_[me_];
  char *data = static_cast<char *>(to);
  Mail &mail = segment_.mail(source, me);
  const std::uint32_t number = mail.taken.load(std::memory_order_relaxed);
  start(Op::recv, number, timeout_ns);
  Cell &cell = mail.cells[number % kCells];
  waiter.until(cell.number, cell.waiters, number + 1, source);
  const std::uint64_t length = cell.bytes;
  const bool other = length != bytes || cell.type != (std::uint64_t(type) | std::uint64_t(hash_type(type, type_name)) << 32);
  const bool fits = length <= sizeof cell.data;
  if (fits && length && !other) std::memcpy(data, cell.data, length);
  Waiter::raise(mail.taken, mail.taken_waiters, number + 1);
  for (std::uint64_t at = 0; !fits && at < length; at += kFragment) { // a mismatched message must leave the channel too
    Channel &channel = segment_.channel(1, source, me);
    const std::uint32_t piece = channel.taken.load(std::memory_order_relaxed);
    waiter.until(channel.sent, channel.sent_waiters, piece + 1, source);
    if (!other) std::memcpy(data + at, segment_.fragment(1, source, me, piece), std::min<std::uint64_t>(kFragment, length - at));
    Waiter::raise(channel.taken, channel.taken_waiters, piece + 1);
  }
  if (other) throw Failure{Fault::mismatch, source};
  Usage &u = usage[int(Op::recv)];
  u.calls++, u.bytes += bytes, u.ns += monotonic_ns() - start_ns_;
}

} // namespace ridgeline
