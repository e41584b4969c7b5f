// Schedules, and send and recv, over channels: put a message, signal, wait.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "collective/collective.hpp"

namespace ridgeline {
namespace {

using Pieces = std::vector<std::pair<const char *, std::size_t>>;

} // namespace

void check_program(const Call &call, const Program &program, int n, int me, std::size_t message_bytes) {
  const int chunks = program.chunks, widest = program.widest;
  const std::int32_t *steps = program.steps;
  const std::size_t one = size_of(call.type);
  const bool blocks = call.op == Op::all_gather || call.op == Op::reduce_scatter;
  if (widest < 1 || std::size_t(widest) * one > message_bytes) throw std::invalid_argument("a step has too many chunks");
  if (chunks < 1 || (blocks && chunks % n)) throw std::invalid_argument("the chunks do not fit the ranks");
  for (std::size_t k = 0; k < program.rows; ++k) {
    const std::int32_t *s = steps + 4 * k;
    const bool copies = s[0] == copy_step;
    if (s[3] < 1 || s[3] > widest || s[2] < 0 || s[2] > chunks - s[3] || (copies && (s[1] < 0 || s[1] > chunks - s[3])))
      throw std::invalid_argument("a step names an invalid chunk");
    if (!copies && (s[1] < 0 || s[1] >= n || s[1] == me)) throw std::invalid_argument("a step names an invalid rank");
  }
}

// The mean of n is the reduction of the sum and n − 1 arrays of zeros, divided by n.
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

// The data is split into cuts so that no message is larger than a fragment, and the program runs once per cut. So a channel
// holds complete messages, as the verification of a schedule assumes, and the cuts follow each other through the channels.
// Chunks may differ by one element in length.
void Collective::run(const Call &call, const Program &program) {
  const int n = size(), chunks = program.chunks, widest = program.widest;
  const std::int32_t *steps = program.steps;
  const std::size_t one = size_of(call.type), block = call.count * one;
  const bool blocks = call.op == Op::all_gather || call.op == Op::reduce_scatter;
  check_program(call, program, n, me_, kFragment);
  start(call.op, sequence_, call.timeout_ns);
  arrive(call, program.algorithm, program.schedule_hash, true, 0);

  const int per = blocks ? chunks / n : chunks;
  const std::uint64_t longest = (call.count + per - 1) / per;
  auto begin = [&](std::int64_t c) -> std::uint64_t {
    return blocks ? (c / per) * call.count + (c % per) * call.count / per : c * call.count / chunks;
  };
  const bool in_scratch = call.op == Op::reduce_scatter || call.op == Op::reduce; // `out` must not show the parts of other ranks
  const std::size_t bytes = blocks ? block * n : block;
  if (in_scratch) scratch_.resize(std::max(scratch_.size(), bytes));
  char *data = in_scratch ? scratch_.data() : static_cast<char *>(call.out);
  char *first = call.op == Op::all_gather ? data + me_ * block : data;
  const std::size_t sent_bytes = call.op == Op::reduce_scatter ? bytes : block;
  if (call.in != first && sent_bytes && (call.op != Op::broadcast || me_ == call.root)) std::memmove(first, call.in, sent_bytes);
  const std::uint64_t cut = kFragment / one / std::uint64_t(widest);

  const Combine how = call.how == Combine::avg ? Combine::sum : call.how;
  for (std::uint64_t low = 0; low < longest; low += cut) {
    auto piece = [&](std::int64_t c) -> std::pair<char *, std::uint64_t> { // of chunk c, in this cut
      const std::uint64_t from = begin(c) + low, end = std::min(from + cut, begin(c + 1));
      return {data + from * one, end > from ? end - from : 0};
    };
    for (std::size_t k = 0; k < program.rows; ++k) {
      const std::int32_t kind = steps[4 * k], peer = steps[4 * k + 1], chunk = steps[4 * k + 2], width = steps[4 * k + 3];
      if (kind == send_step) {
        Pieces pieces;
        for (std::int32_t c = chunk; c < chunk + width; ++c) {
          const auto [at, m] = piece(c);
          pieces.emplace_back(at, m * one);
        }
        put(0, peer, pieces);
        continue;
      }
      if (kind == copy_step) {
        for (std::int32_t c = 0; c < width; ++c) {
          const auto [to, m] = piece(chunk + c);
          const auto [from, available] = piece(peer + c);
          std::memmove(to, from, std::min(m, available) * one);
        }
        continue;
      }
      Channel &channel = segment_.channel(0, members_[peer], members_[me_]);
      const std::uint32_t number = channel.taken.load(std::memory_order_relaxed);
      waiter.until(channel.sent, channel.sent_waiters, number + 1, members_[peer]);
      const char *from = segment_.fragment(0, members_[peer], members_[me_], number);
      for (std::int32_t c = chunk; c < chunk + width; ++c) {
        const auto [to, m] = piece(c);
        if (kind == recv_step) std::memcpy(to, from, m * one);
        else {
          const void *both[2] = {to, from};
          loops_.reduce(to, both, 2, m, call.type, how);
        }
        from += m * one;
      }
      Waiter::raise(channel.taken, channel.taken_waiters, number + 1);
    }
  }
  char *out = static_cast<char *>(call.out);
  if (call.op == Op::reduce_scatter && block) std::memcpy(out, data + me_ * block, block);
  if (call.op == Op::reduce && me_ == call.root && block) std::memcpy(out, data, block);
  if (call.how == Combine::avg && (call.op != Op::reduce || me_ == call.root)) divide_sum(loops_, call, n);
  Usage &u = usage[int(call.op)];
  u.calls++, u.bytes += bytes, u.ns += monotonic_ns() - start_ns_;
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
