// Collectives between ranks of several hosts, over the streams of `Links`.
//
// In every call each rank sends its call to every other one, with small data in the same frame; all compare the calls
// before larger data moves. Larger data is cut into a part for each rank: ranks send the parts to their ranks, which add
// them while they arrive, and send the sums to all while they are added.
#pragma once

#include <string>
#include <vector>

#include "collective/collective.hpp"
#include "transport/links.hpp"

namespace ridgeline {

constexpr std::size_t kMessage = 256 << 10;        // bytes of one message of a schedule, at most
constexpr std::uint64_t kInlineAll = 64 << 10;     // bytes that a rank may send to all ranks together with its call

struct PeerUsage {
  std::uint64_t calls = 0, sent = 0, received = 0;
  std::int64_t ns = 0;
};

class NetworkCollective final : public RankEngine {
public:
  NetworkCollective(int me, std::vector<LinkFiles> files, std::uint64_t small_bytes, bool is_crowded, std::shared_ptr<UcxWorker> ucx = nullptr);
  ~NetworkCollective() override;

  void run(const Call &call) override;
  void run(const Call &call, const Program &program) override;
  void refuse(Op op, std::int64_t timeout_ns) override;
  void send(const void *from, std::uint64_t bytes, Number type, int to, std::int64_t timeout_ns, const char *type_name) override;
  void receive(void *to, std::uint64_t bytes, Number type, int from, std::int64_t timeout_ns, const char *type_name) override;

  int size() const override { return links_.size(); }
  int me() const override { return me_; }
  std::uint32_t call_number() const override { return number_; }
  std::pair<Called, CallData> disputed(int rank) const override { return read_slot(rank, disputed_ % 2); }
  std::pair<Called, CallData> read_last_header(int rank) const override;
  std::string type_name(int rank, std::uint32_t sequence) const override { return links_.slot(rank, sequence).call.type_name; }
  void fail(const Failure &failure) override;
  void abort() override;
  const FirstFailure *first_failure() const override;
  void look_for_failures() override;
  std::vector<std::int64_t> waited_ns() const override { return waited_ns_; }

  void end(); // closes all streams
  StreamState state(int rank) const { return links_.state(rank); }
  bool is_gone(int rank) const { return links_.is_gone(rank); } // it has closed a stream
  int waits_for(int rank) const { return rank == me_ ? waits_for_.load() : int(links_.waits_for(rank)) - 1; }
  const PeerUsage &peer_usage(int rank, int op) const { return peer_usage_[rank * kOps + op]; }
  std::uint64_t current_call() const { return current_.load(); }

  std::function<void()> takes_long;     // called once when a wait takes longer than a short spin
  std::function<bool()> interrupted;    // called regularly during a wait

private:
  struct Lanes; // the state of a long call on one lane

  std::pair<Called, CallData> read_slot(int rank, std::uint32_t parity) const;
  void start(Op op, std::uint32_t number, std::int64_t timeout_ns);
  void finish(const Call &call, std::size_t bytes);
  template <class Work> void guard(Work work);
  bool is_inline(const Call &call) const;
  std::uint32_t arrive(const Call &call, std::uint32_t algorithm, std::uint32_t schedule_hash, bool carries_data);
  void wait_for_calls(std::uint32_t sequence);
  void small_call(const Call &call, std::uint32_t sequence);
  void large_call(const Call &call, std::uint32_t sequence);
  // Moves data until `is_done`; `list_missing` names the ranks that this rank waits for, and whether one of them has closed
  // the stream that matters.
  template <class Done, class Missing> void wait_until(Done is_done, Missing list_missing, Lane *only = nullptr);
  void announce_wait(int rank);
  int find_cause(int rank) const;
  void record(const FailureFrame &failure);
  void add_usage(Op op, int rank, std::uint64_t sent, std::uint64_t received) {
    PeerUsage &u = peer_usage_[rank * kOps + int(op)];
    u.sent += sent, u.received += received;
  }

  Links links_;
  int me_;
  std::uint64_t small_;
  bool is_crowded_;
  std::int64_t spin_ns_; // that a wait spins before it sleeps: less after waits that spinning did not shorten
  std::uint32_t sequence_ = 0, disputed_ = 0;
  std::vector<std::uint32_t> sent_messages_, received_messages_;
  FirstFailure first_failure_{};
  bool refused_ = false, has_ended_ = false;
  Op op_ = Op::barrier;       // of the current call, as are the next three
  std::uint32_t number_ = 0;
  std::int64_t start_ns_ = 0, timeout_ns_ = 0, deadline_ = 0;
  std::atomic<int> waits_for_{-1};
  std::atomic<std::uint64_t> current_{0}; // (sequence number << 8 | operation + 1) during a call
  std::vector<std::int64_t> waited_ns_;
  std::vector<PeerUsage> peer_usage_;
  std::vector<const void *> from_;
  std::vector<char> scratch_, buffer_;
  ReduceLoops loops_;
};

} // namespace ridgeline
