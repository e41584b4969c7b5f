#include "transport/network.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <tuple>

#include <sched.h>

namespace ridgeline {
namespace {

constexpr std::uint64_t kBlock = 64 << 10;       // bytes added at a time: they stay in the caches
constexpr std::uint64_t kWindow = 8 * kBlock;    // bytes that a rank may be ahead of the slowest one
constexpr std::uint64_t kManyLanes = 512 << 10;  // bytes of a part from which it is cut over several lanes
constexpr std::uint64_t kUnsent = 2;             // messages of a schedule that may wait in a lane
constexpr std::int64_t kSpinNs = 50'000, kCrowdedSpinNs = 2'000;
constexpr std::int64_t kCheckNs = 20'000'000;    // between two checks of signals and failures
constexpr std::int64_t kLongWaitNs = 100'000'000; // after it the other ranks learn which rank this one waits for
constexpr std::int64_t kGoneNs = 500'000'000;    // from the first closed stream of a rank until it counts as dead
constexpr std::uint32_t kScatter = 1, kGather = 2;

Frame make_frame(FrameKind kind, std::uint32_t sequence, std::uint32_t index, std::uint64_t length) {
  return {kFrameMagic, std::uint8_t(kind), 1, sequence, index, 0, length, length};
}

// Where stripe `k` of `lanes` begins in `bytes` bytes: on a cache line.
std::uint64_t stripe(std::uint64_t bytes, int lanes, int k) {
  return k == lanes ? bytes : (bytes / 64 * std::uint64_t(k) / std::uint64_t(lanes)) * 64;
}

} // namespace

NetworkCollective::NetworkCollective(int me, std::vector<LinkFiles> files, std::uint64_t small_bytes, bool is_crowded, std::shared_ptr<UcxWorker> ucx)
    : links_(me, std::move(files), std::move(ucx)), me_(me), small_(std::min<std::uint64_t>(small_bytes, kInline)), is_crowded_(is_crowded),
      spin_ns_(is_crowded ? kCrowdedSpinNs : kSpinNs), sent_messages_(links_.size()), received_messages_(links_.size()), waited_ns_(links_.size()),
      peer_usage_(std::size_t(links_.size()) * kOps), from_(links_.size()), loops_(reduce_loops(chosen_isa())) {
  for (std::uint32_t parity = 0; parity < 2; ++parity) links_.slot(me_, parity).data.resize(sizeof(CallFrame) + kInline);
  links_.on_failure = [this](int, const FailureFrame &failure) { record(failure); };
}

NetworkCollective::~NetworkCollective() { end(); }

void NetworkCollective::end() {
  if (has_ended_ || is_forked()) return;
  has_ended_ = true;
  links_.end(!first_failure_.state.load());
}

void NetworkCollective::record(const FailureFrame &failure) {
  std::uint32_t expected = FirstFailure::no_failure;
  if (!first_failure_.state.compare_exchange_strong(expected, FirstFailure::writing)) return;
  first_failure_.op = failure.op, first_failure_.sequence = failure.sequence;
  first_failure_.fault = failure.fault, first_failure_.rank = failure.rank, first_failure_.reported_by = failure.reported_by;
  first_failure_.timeout_ns = failure.timeout_ns;
  first_failure_.state.store(FirstFailure::written);
}

void NetworkCollective::fail(const Failure &failure) {
  if (first_failure_.state.load() != FirstFailure::no_failure) return;
  const FailureFrame report{int(failure.fault), failure.rank, me_, std::uint32_t(op_), number_, 0, timeout_ns_};
  record(report);
  const Frame frame = make_frame(FrameKind::failure, 0, 0, sizeof report);
  for (int rank = 0; rank < size(); ++rank)
    if (rank != me_) links_.send_control(rank, frame, &report);
}

void NetworkCollective::abort() {
  fail({Fault::aborted, me_});
  links_.wake();
}

const FirstFailure *NetworkCollective::first_failure() const {
  return first_failure_.state.load() == FirstFailure::written ? &first_failure_ : nullptr;
}

void NetworkCollective::look_for_failures() {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == me_ || first_failure_.state.load()) continue;
    Lane &lane = links_.control_lane(rank);
    lane.may_read = !lane.is_closed;
    try {
      links_.read(lane);
    } catch (const Failure &failure) {
      fail(failure);
    }
  }
}

std::pair<Called, CallData> NetworkCollective::read_slot(int rank, std::uint32_t parity) const {
  const CallSlot &slot = links_.slot(rank, parity);
  return {slot.call.called, {slot.sequence, 0, 0, slot.stamp}};
}

std::pair<Called, CallData> NetworkCollective::read_last_header(int rank) const {
  return read_slot(rank, links_.slot(rank, 0).stamp > links_.slot(rank, 1).stamp ? 0 : 1);
}

void NetworkCollective::start(Op op, std::uint32_t number, std::int64_t timeout_ns) {
  if (first_failure_.state.load(std::memory_order_relaxed)) throw Failure{Fault::failed_before, me_};
  op_ = op, number_ = number, timeout_ns_ = timeout_ns;
  start_ns_ = monotonic_ns();
  deadline_ = start_ns_ + timeout_ns;
  current_.store(std::uint64_t(number) << 8 | (std::uint64_t(op) + 1), std::memory_order_relaxed);
}

void NetworkCollective::finish(const Call &call, std::size_t bytes) {
  links_.settle(); // this process may end after the call, and no kernel repeats what it sent by UDP
  const std::int64_t ns = monotonic_ns() - start_ns_;
  Usage &u = usage[int(call.op)];
  u.calls++, u.bytes += bytes, u.ns += ns;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == me_) continue;
    PeerUsage &peer = peer_usage_[rank * kOps + int(call.op)];
    peer.calls++, peer.ns += ns;
  }
  current_.store(0, std::memory_order_relaxed);
}

template <class Work> void NetworkCollective::guard(Work work) {
  try {
    work();
  } catch (const Failure &failure) {
    current_.store(0, std::memory_order_relaxed);
    if (failure.fault != Fault::mismatch) links_.drop_calls(); // their memory is gone
    throw;
  } catch (...) {
    current_.store(0, std::memory_order_relaxed);
    throw;
  }
}

// This rank waited too long for `rank`, which may itself wait for another rank: the last rank of the chain is the cause.
int NetworkCollective::find_cause(int rank) const {
  std::vector<int> chain;
  for (int r = rank; r != me_ && std::find(chain.begin(), chain.end(), r) == chain.end();) {
    chain.push_back(r);
    const std::uint32_t rank_plus_one = links_.waits_for(r);
    if (!rank_plus_one || rank_plus_one > std::uint32_t(size())) return r;
    r = int(rank_plus_one) - 1;
  }
  return rank;
}

void NetworkCollective::announce_wait(int rank) {
  waits_for_.store(rank);
  const Frame frame = make_frame(FrameKind::waits, number_, std::uint32_t(rank + 1), 0);
  for (int r = 0; r < size(); ++r)
    if (r != me_) links_.send_control(r, frame, nullptr);
}

template <class Done, class Missing> void NetworkCollective::wait_until(Done is_done, Missing list_missing, Lane *only) {
  if (is_done()) return;
  const std::int64_t start_ns = monotonic_ns();
  std::int64_t now = start_ns, moved_ns = start_ns, gone_ns = 0, checked_ns = start_ns;
  bool is_long = false;
  int missing = -1, announced = -1;
  for (std::uint32_t round = 0;; ++round) {
    bool moved;
    if (only && !is_long && round % 64 != 63) { // a short wait: ask one stream without an event
      only->may_read = !only->is_closed;
      moved = links_.read(*only);
    } else {
      if (!is_long)
        for (int rank = 0; rank < size() && size() <= 4; ++rank)
          if (rank != me_) links_.lane(rank, 0).may_read = !links_.lane(rank, 0).is_closed;
      moved = links_.move_all();
    }
    if (is_done()) break;
    now = monotonic_ns();
    if (moved) {
      moved_ns = now;
      if (now - checked_ns < kCheckNs) continue;
    }
    if (first_failure_.state.load()) throw Failure{Fault::failed_before, me_};
    if (!moved && now - moved_ns < spin_ns_ && now < deadline_) {
      if (is_crowded_) sched_yield();
      continue;
    }
    if (!is_long) {
      is_long = true;
      if (takes_long) takes_long();
    }
    bool is_closed = false;
    std::tie(missing, is_closed) = list_missing();
    if (!moved) {
      if (missing >= 0 && links_.is_gone(missing)) {
        if (!gone_ns) gone_ns = now;
        // What the rank wrote before it ended has been read if its stream is closed; its failure comes by another stream.
        if (is_closed || now - gone_ns > kGoneNs) {
          links_.wait(0);
          links_.move_all();
          if (is_done()) break;
          if (first_failure_.state.load()) throw Failure{Fault::failed_before, me_};
          throw Failure{Fault::dead, missing};
        }
      }
      links_.wait(std::min<std::int64_t>({kCheckNs, std::max<std::int64_t>(0, deadline_ - now), gone_ns ? 1'000'000 : kCheckNs}));
      now = monotonic_ns();
    }
    if (now - checked_ns < kCheckNs && now < deadline_) continue;
    checked_ns = now;
    if (interrupted && interrupted()) throw Failure{Fault::interrupted, me_};
    if (missing >= 0 && now - moved_ns > kLongWaitNs && announced != missing) announce_wait(announced = missing);
    if (now >= deadline_) {
      links_.move_all();
      if (is_done()) break;
      if (first_failure_.state.load()) throw Failure{Fault::failed_before, me_};
      std::tie(missing, is_closed) = list_missing();
      throw Failure{Fault::late, missing < 0 ? me_ : find_cause(missing)};
    }
  }
  if (announced >= 0) announce_wait(-1);
  if (missing < 0) missing = only ? only->rank : -1;
  now = monotonic_ns();
  if (missing >= 0) waited_ns_[missing] += now - start_ns;
  // Where other processes use the cores, ranks come late, and spinning only takes the core that they wait for.
  if (!is_crowded_) spin_ns_ = now - start_ns < kSpinNs ? kSpinNs : std::max(kCrowdedSpinNs, spin_ns_ / 2);
}

bool NetworkCollective::is_inline(const Call &call) const {
  const std::uint64_t block = call.count * size_of(call.type), others = std::uint64_t(size() - 1);
  return block <= small_ && block * others <= kInlineAll;
}

std::uint32_t NetworkCollective::arrive(const Call &call, std::uint32_t algorithm, std::uint32_t schedule_hash, bool carries_data) {
  if (refused_) {
    wait_for_calls(sequence_ - 1);
    for (int rank = 0; rank < size(); ++rank) links_.slot(rank, sequence_ - 1).is_full = false;
    refused_ = false;
  }
  const std::uint32_t sequence = sequence_++;
  links_.next_sequence = sequence_;
  const std::size_t block = call.count * size_of(call.type);
  CallSlot &local = links_.slot(me_, sequence);
  local.sequence = sequence, local.stamp = start_ns_, local.is_full = true;
  local.call.called = Called(std::uint32_t(call.op), std::uint32_t(call.type), std::uint32_t(call.how), algorithm,
                           hash_type(call.type, call.type_name) ^ schedule_hash, call.root, call.count);
  std::memset(local.call.type_name, 0, kTypeName);
  if (call.type == Number::bytes) std::strncpy(local.call.type_name, call.type_name, kTypeName - 1);
  const char *data = static_cast<const char *>(call.in);
  const bool for_each = call.op == Op::reduce_scatter || call.op == Op::all_to_all;
  for (int distance = 1; distance < size(); ++distance) {
    const int rank = (me_ + distance) % size();
    const bool takes_data = carries_data && (call.op != Op::broadcast || me_ == call.root) && (call.op != Op::reduce || rank == call.root);
    const std::size_t bytes = takes_data ? block : 0;
    const iovec pieces[2] = {{&local.call, sizeof(CallFrame)}, {const_cast<char *>(data) + (for_each ? rank * block : 0), bytes}};
    links_.write_copy(links_.lane(rank, 0), make_frame(FrameKind::call, sequence, 0, sizeof(CallFrame) + bytes), pieces, bytes ? 2 : 1);
    add_usage(call.op, rank, bytes, 0);
  }
  wait_for_calls(sequence);
  for (int rank = 0; rank < size(); ++rank) links_.slot(rank, sequence).is_full = false; // they stay until the next call but one
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == me_) continue;
    const CallSlot &slot = links_.slot(rank, sequence);
    if (std::memcmp(&slot.call.called, &local.call.called, sizeof(Called))) {
      disputed_ = sequence;
      throw Failure{Fault::mismatch, rank};
    }
    add_usage(call.op, rank, 0, slot.bytes);
  }
  return sequence;
}

void NetworkCollective::wait_for_calls(std::uint32_t sequence) {
  auto has_arrived = [&](int rank) {
    const CallSlot &slot = links_.slot(rank, sequence);
    return rank == me_ || (slot.is_full && slot.sequence == sequence);
  };
  int next = 0; // ranks before it have arrived
  wait_until(
      [&] {
        while (next < size() && has_arrived(next)) ++next;
        return next == size();
      },
      [&] {
        // A rank that is gone is named before one that is only slow.
        for (int rank = next; rank < size(); ++rank)
          if (!has_arrived(rank) && links_.is_gone(rank)) return std::make_tuple(rank, links_.lane(rank, 0).is_closed);
        return std::make_tuple(next, false);
      },
      size() == 2 ? &links_.lane(1 - me_, 0) : nullptr);
}

void NetworkCollective::refuse(Op op, std::int64_t timeout_ns) {
  guard([&] {
    start(op, sequence_, timeout_ns);
    if (refused_) {
      wait_for_calls(sequence_ - 1);
      for (int rank = 0; rank < size(); ++rank) links_.slot(rank, sequence_ - 1).is_full = false;
    }
    const std::uint32_t sequence = sequence_++;
    links_.next_sequence = sequence_;
    CallSlot &local = links_.slot(me_, sequence);
    local.sequence = sequence, local.stamp = start_ns_, local.is_full = true;
    local.call.called = Called(std::uint32_t(op), 0, 0, kRefusedCall, 0, 0, 0);
    const iovec piece{&local.call, sizeof(CallFrame)};
    for (int rank = 0; rank < size(); ++rank)
      if (rank != me_) links_.write_copy(links_.lane(rank, 0), make_frame(FrameKind::call, sequence, 0, sizeof(CallFrame)), &piece, 1);
    refused_ = true;
    current_.store(0, std::memory_order_relaxed);
  });
}

void NetworkCollective::run(const Call &requested) {
  Call call = requested;
  guard([&] {
    start(call.op, sequence_, call.timeout_ns);
    const std::size_t bytes = sent_bytes(call, size());
    const bool fits = is_inline(call);
    std::unique_ptr<char[]> staged;
    const bool in_place = call.op == Op::all_to_all && call.in == call.out;
    if (bytes && call.op != Op::broadcast && (fits || in_place || overwrites_input(call, size(), me_))) {
      char *copy;
      if (fits && bytes <= 4 * kInline) {
        buffer_.resize(std::max(buffer_.size(), bytes));
        copy = buffer_.data();
      } else {
        staged.reset(new char[bytes]);
        copy = staged.get();
      }
      std::memcpy(copy, call.in, bytes);
      call.in = copy;
    }
    const std::uint32_t sequence = arrive(call, 0, 0, fits);
    if (call.count && call.op != Op::barrier) {
      if (fits || size() == 1) small_call(call, sequence);
      else large_call(call, sequence);
    }
    finish(call, bytes);
  });
}

void NetworkCollective::small_call(const Call &call, std::uint32_t sequence) {
  const int n = size();
  const std::size_t block = call.count * size_of(call.type);
  char *out = static_cast<char *>(call.out);
  const bool for_each = call.op == Op::reduce_scatter || call.op == Op::all_to_all;
  auto data = [&](int rank) -> const char * {
    if (rank == me_) return static_cast<const char *>(call.in) + (for_each ? me_ * block : 0);
    const CallSlot &slot = links_.slot(rank, sequence);
    const bool gives = (call.op != Op::broadcast || rank == call.root) && (call.op != Op::reduce || me_ == call.root);
    if (gives && slot.bytes != block) throw Failure{Fault::garbled, rank};
    return slot.data.data() + sizeof(CallFrame);
  };
  if (call.op == Op::all_reduce || call.op == Op::reduce_scatter || (call.op == Op::reduce && call.root == me_)) {
    for (int r = 0; r < n; ++r) from_[r] = data(r);
    loops_.reduce(out, from_.data(), n, call.count, call.type, call.how);
  } else if (call.op == Op::all_gather || call.op == Op::all_to_all) {
    for (int r = 0; r < n; ++r) std::memmove(out + r * block, data(r), block);
  } else if (call.op == Op::broadcast && call.root != me_) {
    std::memcpy(out, data(call.root), block);
  }
}

struct NetworkCollective::Lanes {
  std::vector<Incoming> scatters, gathers; // from each rank
  std::uint64_t length = 0;                // of this rank's stripe
  std::uint64_t reduced = 0, forwarded = 0;
  std::vector<char> result;                // the sums of a reduce, where this rank is not the root
  char *to = nullptr;                      // of the sums
  const char *input = nullptr;               // what this rank adds
};

void NetworkCollective::large_call(const Call &call, std::uint32_t sequence) {
  const int n = size();
  const std::size_t one = size_of(call.type), block = call.count * one;
  const std::uint64_t line = std::max<std::uint64_t>(1, 64 / one);
  const bool adds = call.op == Op::all_reduce || call.op == Op::reduce_scatter || call.op == Op::reduce;
  const bool has_blocks = call.op == Op::all_gather || call.op == Op::reduce_scatter || call.op == Op::all_to_all;
  const char *in = static_cast<const char *>(call.in);
  char *out = static_cast<char *>(call.out);
  auto part_begin = [&](int p) -> std::uint64_t { // in bytes, of the part of rank p
    return has_blocks ? p * block : p == n ? block : (call.count / line * p / n) * line * one;
  };
  auto part_bytes = [&](int p) { return part_begin(p + 1) - part_begin(p); };
  const int lanes = (has_blocks ? block : block / n) >= kManyLanes ? links_.lanes() : 1;
  const bool is_root = me_ == call.root;
  const std::uint64_t ring = std::min<std::uint64_t>(kWindow, (part_bytes(me_) + kBlock - 1) / kBlock * kBlock);
  if (adds) scratch_.resize(std::max<std::size_t>(scratch_.size(), std::size_t(lanes) * n * ring));

  std::vector<Lanes> all(lanes);
  std::uint64_t unfinished = 0;
  for (int k = 0; k < lanes; ++k) {
    Lanes &lane = all[k];
    lane.scatters.resize(n), lane.gathers.resize(n);
    const std::uint64_t input_at = part_begin(me_) + stripe(part_bytes(me_), lanes, k);
    lane.length = stripe(part_bytes(me_), lanes, k + 1) - stripe(part_bytes(me_), lanes, k);
    lane.input = in + input_at;
    if (call.op == Op::reduce_scatter) lane.to = out + stripe(block, lanes, k);
    else if (call.op == Op::reduce && !is_root) lane.result.resize(lane.length), lane.to = lane.result.data();
    else lane.to = out + input_at;
    // What this rank receives
    for (int distance = 1; distance < n; ++distance) {
      const int r = (me_ + n - distance) % n;
      const std::uint64_t at = part_begin(r) + stripe(part_bytes(r), lanes, k);
      const std::uint64_t bytes = stripe(part_bytes(r), lanes, k + 1) - stripe(part_bytes(r), lanes, k);
      Incoming &scatter = lane.scatters[r], &gather = lane.gathers[r];
      scatter.sequence = gather.sequence = sequence;
      scatter.index = kScatter, gather.index = kGather;
      if (adds) {
        scatter.length = lane.length, scatter.ring = ring, scatter.limit = ring;
        scatter.base = scratch_.data() + (std::size_t(k) * n + r) * ring;
      } else if (call.op == Op::all_to_all) {
        scatter.length = bytes, scatter.base = out + at;
      } else if (call.op == Op::broadcast && r == call.root) {
        scatter.length = lane.length, scatter.base = lane.to;
      }
      if (call.op == Op::all_reduce || call.op == Op::all_gather || (call.op == Op::reduce && is_root) ||
          (call.op == Op::broadcast && !is_root))
        gather.length = bytes, gather.base = out + at;
      links_.post(links_.lane(r, k), &scatter);
      links_.post(links_.lane(r, k), &gather);
      add_usage(call.op, r, 0, scatter.length + gather.length);
    }
    // What this rank sends
    if (call.op == Op::all_gather) lane.forwarded = lane.length;
    if (call.op == Op::broadcast && is_root) lane.forwarded = lane.length;
    for (int distance = 1; distance < n; ++distance) {
      const int r = (me_ + distance) % n;
      const std::uint64_t at = part_begin(r) + stripe(part_bytes(r), lanes, k);
      const std::uint64_t bytes = stripe(part_bytes(r), lanes, k + 1) - stripe(part_bytes(r), lanes, k);
      auto write = [&](std::uint32_t index, const char *from, std::uint64_t length, const std::uint64_t *ready) {
        if (!length) return;
        Outgoing outgoing;
        outgoing.frame = make_frame(FrameKind::data, sequence, index, length);
        outgoing.base = from, outgoing.ready = ready, outgoing.unfinished = &unfinished;
        links_.write(links_.lane(r, k), std::move(outgoing));
        add_usage(call.op, r, length, 0);
      };
      if (adds || call.op == Op::all_to_all || (call.op == Op::broadcast && is_root)) write(kScatter, in + at, bytes, nullptr);
      if (call.op == Op::all_reduce || (call.op == Op::reduce && r == call.root)) write(kGather, lane.to, lane.length, &lane.reduced);
      if (call.op == Op::all_gather) write(kGather, in + stripe(block, lanes, k), lane.length, nullptr);
      if (call.op == Op::broadcast && r != call.root) write(kGather, is_root ? lane.input : lane.to, lane.length, &lane.forwarded);
    }
  }
  if (call.op == Op::all_gather && out + me_ * block != in) std::memcpy(out + me_ * block, in, block);
  if (call.op == Op::all_to_all) std::memcpy(out + me_ * block, in + me_ * block, block);

  // Adds what has arrived from all ranks; whether something was added.
  auto add = [&](Lanes &lane) {
    bool added = false;
    while (adds && lane.reduced < lane.length) {
      std::uint64_t available = lane.length;
      for (int r = 0; r < n; ++r)
        if (r != me_) available = std::min(available, lane.scatters[r].received);
      const std::uint64_t bytes = std::min(available - lane.reduced, kBlock);
      if (bytes < kBlock && available < lane.length) break;
      for (int r = 0; r < n; ++r)
        from_[r] = r == me_ ? lane.input + lane.reduced : lane.scatters[r].base + lane.reduced % ring;
      loops_.reduce(lane.to + lane.reduced, from_.data(), n, bytes / one, call.type, call.how);
      lane.reduced += bytes;
      for (int r = 0; r < n; ++r) lane.scatters[r].limit = lane.reduced + ring;
      added = true;
    }
    if (call.op == Op::broadcast && !is_root) lane.forwarded = lane.scatters[call.root].received;
    return added;
  };
  auto is_waiting_for = [&](int r) {
    if (r == me_) return false;
    for (Lanes &lane : all)
      if ((lane.scatters[r].length && !lane.scatters[r].is_done()) || (lane.gathers[r].length && !lane.gathers[r].is_done())) return true;
    return false;
  };
  wait_until(
      [&] {
        bool is_done = true;
        for (Lanes &lane : all) {
          while (add(lane)) links_.move_all();
          is_done = is_done && (!adds || lane.reduced == lane.length);
        }
        if (!is_done || unfinished) return false;
        for (int r = 0; r < n; ++r)
          if (is_waiting_for(r)) return false;
        return true;
      },
      [&] {
        int missing = -1;
        for (int r = 0; r < n; ++r) {
          bool waits = is_waiting_for(r);
          for (int k = 0; k < lanes && !waits && r != me_; ++k) waits = !links_.lane(r, k).queue.empty();
          if (!waits) continue;
          bool is_closed = false;
          for (int k = 0; k < lanes; ++k) is_closed = is_closed || links_.lane(r, k).is_closed;
          if (links_.is_gone(r)) return std::make_tuple(r, is_closed);
          if (missing < 0) missing = r;
        }
        return std::make_tuple(missing, false);
      });
}

void NetworkCollective::run(const Call &call, const Program &program) {
  const int n = size();
  const std::size_t one = size_of(call.type);
  ChunkedData data(call, program, n, me_, kMessage);
  guard([&] {
    start(call.op, sequence_, call.timeout_ns);
    const std::uint32_t sequence = arrive(call, program.algorithm, program.schedule_hash, false);
    std::vector<std::uint32_t> sent(n), received(n);
    buffer_.resize(std::max(buffer_.size(), kMessage));
    for (data.begin(scratch_); data.has_cut(); data.next_cut()) {
      for (std::size_t k = 0; k < program.rows; ++k) {
        const std::int32_t *const step = program.steps + 4 * k;
        const std::int32_t kind = step[0], peer = step[1], chunk = step[2], width = step[3];
        if (kind == copy_step) {
          data.copy(peer, chunk, width);
          continue;
        }
        std::vector<iovec> pieces;
        std::uint64_t length = 0;
        for (std::int32_t c = chunk; c < chunk + width; ++c) {
          const auto [at, count] = data.piece(c);
          if (count) pieces.push_back({at, count * one});
          length += count * one;
        }
        Lane &lane = links_.lane(peer, 0);
        if (kind == send_step) {
          const std::uint32_t index = sent[peer]++;
          if (!length) continue;
          wait_until([&] { return lane.queue.size() < kUnsent; },
                     [&] { return std::make_tuple(int(peer), lane.is_closed || lane.is_write_closed); });
          links_.write_copy(lane, make_frame(FrameKind::data, sequence, index, length), pieces.data(), int(pieces.size()));
          add_usage(call.op, peer, length, 0);
          continue;
        }
        Incoming incoming;
        incoming.sequence = sequence, incoming.index = received[peer]++, incoming.length = length;
        if (!length) continue;
        if (kind == recv_step) incoming.pieces = pieces;
        else incoming.base = buffer_.data();
        links_.post(lane, &incoming);
        add_usage(call.op, peer, 0, length);
        wait_until([&] { return incoming.is_done(); }, [&] { return std::make_tuple(int(peer), lane.is_closed); });
        if (kind == reduce_step) data.reduce(loops_, chunk, width, buffer_.data());
      }
    }
    // Messages in the lanes are copies, but a rank that makes no further call would not send them.
    wait_until(
        [&] {
          for (int r = 0; r < n; ++r)
            if (r != me_ && !links_.lane(r, 0).queue.empty()) return false;
          return true;
        },
        [&] {
          for (int r = 0; r < n; ++r)
            if (r != me_ && !links_.lane(r, 0).queue.empty())
              return std::make_tuple(r, links_.lane(r, 0).is_closed || links_.lane(r, 0).is_write_closed);
          return std::make_tuple(-1, false);
        });
    data.finish(loops_);
    finish(call, data.bytes());
  });
}

void NetworkCollective::send(const void *from, std::uint64_t bytes, Number type, int to, std::int64_t timeout_ns, const char *type_name) {
  guard([&] {
    const std::uint32_t number = sent_messages_[to];
    start(Op::send, number, timeout_ns);
    sent_messages_[to]++;
    const int lanes = bytes >= kManyLanes ? links_.lanes() : 1;
    std::uint64_t unfinished = 0;
    for (int k = 0; k < lanes; ++k) {
      const std::uint64_t at = stripe(bytes, lanes, k);
      Outgoing outgoing;
      outgoing.frame = {kFrameMagic, std::uint8_t(FrameKind::message), std::uint8_t(lanes), number, std::uint32_t(type),
                        hash_type(type, type_name), bytes, stripe(bytes, lanes, k + 1) - at};
      outgoing.base = static_cast<const char *>(from) + at, outgoing.unfinished = &unfinished;
      links_.write(links_.message_lane(to, k), std::move(outgoing));
    }
    wait_until([&] { return !unfinished; }, [&] {
      bool is_closed = false;
      for (int k = 0; k < lanes; ++k) is_closed = is_closed || links_.message_lane(to, k).is_write_closed;
      return std::make_tuple(to, is_closed);
    });
    links_.settle();
    const std::int64_t ns = monotonic_ns() - start_ns_;
    Usage &u = usage[int(Op::send)];
    u.calls++, u.bytes += bytes, u.ns += ns;
    PeerUsage &peer = peer_usage_[to * kOps + int(Op::send)];
    peer.calls++, peer.ns += ns, peer.sent += bytes;
    current_.store(0, std::memory_order_relaxed);
  });
}

void NetworkCollective::receive(void *to, std::uint64_t bytes, Number type, int from, std::int64_t timeout_ns, const char *type_name) {
  guard([&] {
    const std::uint32_t number = received_messages_[from];
    start(Op::recv, number, timeout_ns);
    received_messages_[from]++;
    int lanes = bytes >= kManyLanes ? links_.lanes() : 1;
    std::vector<Incoming> parts(links_.lanes());
    for (int k = 0; k < links_.lanes(); ++k) {
      Incoming &part = parts[k];
      part.sequence = number, part.index = std::uint32_t(type), part.hash = hash_type(type, type_name);
      part.is_message = true, part.total = bytes;
      part.base = static_cast<char *>(to) + (k < lanes ? stripe(bytes, lanes, k) : 0);
      part.length = k < lanes ? stripe(bytes, lanes, k + 1) - stripe(bytes, lanes, k) : 0;
    }
    links_.post(links_.message_lane(from, 0), &parts[0]);
    auto wait_for = [&](auto is_done) {
      wait_until(is_done, [&] {
        bool is_closed = false;
        for (int k = 0; k < lanes; ++k) is_closed = is_closed || links_.message_lane(from, k).is_closed;
        return std::make_tuple(from, is_closed);
      }, &links_.message_lane(from, 0));
    };
    wait_for([&] { return parts[0].has_started; });
    const bool is_other = parts[0].is_other; // the message must leave the streams all the same
    if (is_other) lanes = parts[0].frame.lanes;
    else if (parts[0].frame.lanes != lanes) throw Failure{Fault::garbled, from};
    for (int k = 1; k < lanes; ++k) {
      parts[k].discards = is_other;
      links_.post(links_.message_lane(from, k), &parts[k]);
    }
    wait_for([&] {
      for (int k = 0; k < lanes; ++k)
        if (!parts[k].is_done()) return false;
      return true;
    });
    if (is_other) throw Failure{Fault::mismatch, from};
    const std::int64_t ns = monotonic_ns() - start_ns_;
    Usage &u = usage[int(Op::recv)];
    u.calls++, u.bytes += bytes, u.ns += ns;
    PeerUsage &peer = peer_usage_[from * kOps + int(Op::recv)];
    peer.calls++, peer.ns += ns, peer.received += bytes;
    current_.store(0, std::memory_order_relaxed);
  });
}

} // namespace ridgeline
