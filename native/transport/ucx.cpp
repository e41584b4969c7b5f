#include "transport/ucx.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collective/segment.hpp"
#include "transport/caretaker.hpp"
#include "transport/ucx_api.hpp"

namespace ridgeline {

namespace ucx {

const Library &load_library() {
  static const Library library = [] {
    Library l{};
    // Its messages would mix with the output of the program; what matters is in the errors of the calls.
    setenv("UCX_LOG_LEVEL", "fatal", 0);
    setenv("UCX_LOG_FILE", "stderr", 0);
    setenv("UCX_HANDLE_ERRORS", "none", 0); // signals belong to Python
    void *const handle = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char *text = dlerror();
      l.problem = std::string("libucp.so.0 cannot be opened (") + (text ? text : "no reason given") + ")";
      return l;
    }
    auto find = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (!function && l.problem.empty()) l.problem = std::string("libucp.so.0 has no ") + name + ": UCX 1.11 or newer is needed";
    };
    find(l.get_version, "ucp_get_version");
    find(l.config_read, "ucp_config_read");
    find(l.config_modify, "ucp_config_modify");
    find(l.config_release, "ucp_config_release");
    find(l.init_version, "ucp_init_version");
    find(l.cleanup, "ucp_cleanup");
    find(l.worker_create, "ucp_worker_create");
    find(l.worker_destroy, "ucp_worker_destroy");
    find(l.worker_get_address, "ucp_worker_get_address");
    find(l.worker_release_address, "ucp_worker_release_address");
    find(l.worker_progress, "ucp_worker_progress");
    find(l.worker_get_efd, "ucp_worker_get_efd");
    find(l.worker_arm, "ucp_worker_arm");
    find(l.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
    find(l.ep_create, "ucp_ep_create");
    find(l.ep_close_nbx, "ucp_ep_close_nbx");
    find(l.am_send_nbx, "ucp_am_send_nbx");
    find(l.am_recv_data_nbx, "ucp_am_recv_data_nbx");
    find(l.request_free, "ucp_request_free");
    find(l.request_check_status, "ucp_request_check_status");
    if (l.get_version) l.get_version(&l.major, &l.minor, &l.release);
    if (l.problem.empty() && (l.major != kMajor || l.minor < kLeastMinor))
      l.problem = "libucp.so.0 is version " + std::to_string(l.major) + "." + std::to_string(l.minor) + ": UCX 1.11 or newer is needed";
    return l;
  }();
  return library;
}

} // namespace ucx

namespace {

using ucx::Status;

constexpr std::uint64_t kRing = 2 << 20;      // of each direction of a stream
constexpr std::uint64_t kMostAtOnce = 256 << 10; // bytes of one message
constexpr std::uint64_t kCreditEvery = kRing / 4; // bytes taken until the sender hears of it
constexpr std::uint64_t kLeftBehind = 64 << 10; // bytes that a call may leave to the other thread
constexpr std::int64_t kCloseNs = 500'000'000, kAskNs = 1'000'000;
constexpr unsigned kMessage = 7; // the number of our active messages

enum MessageKind : std::uint8_t { kData = 1, kState, kAsk, kClose };

struct MessageHeader {
  std::uint64_t key;      // of this direction, from the handshake
  std::uint64_t offset;   // of the data in the stream
  std::uint64_t received; // of the other direction, without a gap
  std::uint64_t taken;
  std::uint16_t rank, number; // of the sender, and of the stream
  std::uint8_t kind;
  std::uint8_t unused[3];
};
static_assert(sizeof(MessageHeader) == 40);

struct Posted { // a message that is being sent
  std::uint64_t end;
  void *request;
  bool is_done;
};

struct Peer;

// The state of one stream. The worker keeps it until UCX no longer uses its memory.
struct StreamMemory {
  Peer *peer = nullptr;
  int number = 0;
  std::uint64_t send_key = 0, receive_key = 0;
  char *out = nullptr, *in = nullptr;
  bool is_closed = false, has_ended = false; // by the other rank, by this one
  // sent: bytes [freed, posted) are being sent, [posted, end) wait. All counters only grow.
  std::uint64_t freed = 0, posted = 0, end = 0, their_received = 0, their_taken = 0;
  std::deque<Posted> posts;
  std::uint64_t received = 0, taken = 0, credited = 0;
  std::map<std::uint64_t, std::uint64_t> arrived; // beyond `received`: begin → end
  bool must_answer = false;
  char *place = nullptr; // of a reader that has taken all before
  std::size_t place_bytes = 0;
  std::uint64_t seen_round = 0, strangers = 0;
  std::int64_t request_ns = 0;

  std::uint64_t space() const {
    const std::uint64_t begin = std::min(freed, their_taken);
    return kRing - (end - begin);
  }
};

struct Peer { // an endpoint and its streams
  void *endpoint = nullptr;
  std::uint64_t *news = nullptr;
  std::vector<std::unique_ptr<StreamMemory>> streams;
};

class Context { // of the process; UCX finds its devices once
public:
  explicit Context(const std::string &devices) {
    const ucx::Library &l = ucx::load_library();
    void *config = nullptr;
    if (l.config_read(nullptr, nullptr, &config) != ucx::kOk) throw std::runtime_error("UCX cannot read its settings (UCX_…)");
    if (!devices.empty()) l.config_modify(config, "NET_DEVICES", devices.c_str());
    ucx::Parameters parameters;
    parameters.features = ucx::kFeatureAm | ucx::kFeatureWakeup;
    const Status status = l.init_version(ucx::kMajor, ucx::kLeastMinor, &parameters, config, &handle);
    l.config_release(config);
    if (status != ucx::kOk)
      throw std::runtime_error("UCX finds no device it can use (status " + std::to_string(status) + "); look at UCX_TLS and UCX_NET_DEVICES");
  }
  ~Context() {
    if (process == getpid()) ucx::load_library().cleanup(handle); // not in a forked child: the connections are those of its parent
  }
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;
  void *handle = nullptr;
  const pid_t process = getpid();
};

class Worker final : public UcxWorker, public Tended, public std::enable_shared_from_this<Worker> {
public:
  explicit Worker(const std::string &devices) : ucx_(ucx::load_library()), context_(devices) {
    if (ucx_.worker_create(context_.handle, std::make_unique<ucx::WorkerParameters>().get(), &worker_) != ucx::kOk)
      throw std::runtime_error("UCX cannot make a worker; look at UCX_TLS");
    ucx::HandlerParameters handler;
    handler.id = kMessage, handler.argument = this;
    handler.callback = [](void *self, const void *header, std::size_t header_length, void *data, std::size_t length,
                          const ucx::MessageParameters *parameters) {
      return static_cast<Worker *>(self)->take_message(header, header_length, data, length, *parameters);
    };
    void *address = nullptr;
    std::size_t length = 0;
    if (ucx_.worker_set_am_recv_handler(worker_, &handler) != ucx::kOk || ucx_.worker_get_efd(worker_, &events_) != ucx::kOk ||
        ucx_.worker_get_address(worker_, &address, &length) != ucx::kOk) {
      ucx_.worker_destroy(worker_);
      throw std::runtime_error("UCX cannot send messages or wait for them with these transports; look at UCX_TLS");
    }
    address_.assign(static_cast<char *>(address), length);
    ucx_.worker_release_address(worker_, address);
    start_tending(this);
  }

  ~Worker() override {
    if (context_.process != getpid()) {
      for (auto &[rank, peer] : peers_) for (auto &stream : peer->streams) (void)stream.release();
      return;
    }
    stop_tending(this);
    close_endpoints();
    ucx_.worker_destroy(worker_);
    for (auto &[rank, peer] : peers_)
      for (auto &stream : peer->streams)
        if (stream) munmap(stream->out, 2 * kRing);
  }

  std::string address() const override { return address_; }
  int fd() const override { return events_; }

  void start(int me, std::function<void()> progress) override {
    std::lock_guard<std::mutex> hold(lock_);
    me_ = me, progress_ = std::move(progress);
  }

  bool poll() override {
    std::lock_guard<std::mutex> hold(lock_);
    polled_ns_ = monotonic_ns();
    const std::uint64_t before = news_;
    return this->progress() || news_ != before;
  }

  bool arm() override {
    std::lock_guard<std::mutex> hold(lock_);
    return ucx_.worker_arm(worker_) != ucx::kBusy;
  }

  std::unique_ptr<Stream> make_stream(int rank, int number, const std::string &address, std::uint64_t send_key,
                                      std::uint64_t receive_key) override;

  bool tend(std::int64_t now, bool) override {
    std::unique_lock<std::mutex> hold(lock_, std::try_to_lock);
    if (!hold.owns_lock()) return true;
    if (!progress_) return false; // another rank is ahead: its messages wait until the streams are there
    const std::uint64_t before = news_;
    if (now - polled_ns_ > kTickNs - 1'000'000)
      for (int k = 0; k < 64 && progress(); ++k) {
      }
    const bool changed = news_ != before;
    bool is_busy = changed;
    for (auto &[rank, peer] : peers_)
      for (auto &stream : peer->streams) is_busy = is_busy || (stream && stream->their_received < stream->end && !stream->is_closed);
    hold.unlock();
    if (changed && progress_) progress_();
    return is_busy;
  }

private:
  friend class UcxStream;

  Peer *connect(int rank, const std::string &address) {
    std::unique_ptr<Peer> &peer = peers_[rank];
    if (!peer) {
      peer = std::make_unique<Peer>();
      ucx::EndpointParameters parameters;
      parameters.address = address.data();
      peer->news = &news_;
      parameters.error_handler.argument = peer.get();
      parameters.error_handler.call = [](void *argument, void *, Status) {
        for (auto &stream : static_cast<Peer *>(argument)->streams)
          if (stream) stream->is_closed = true;
        ++*static_cast<Peer *>(argument)->news;
      };
      Status status = ucx_.ep_create(worker_, &parameters, &peer->endpoint);
      if (status != ucx::kOk) { // shared memory cannot tell that a rank has ended: its control stream does
        parameters.field_mask = ucx::kEpAddress;
        status = ucx_.ep_create(worker_, &parameters, &peer->endpoint);
      }
      if (status != ucx::kOk) {
        peer->endpoint = nullptr;
        throw std::runtime_error("UCX has no transport to rank " + std::to_string(rank) + "; look at UCX_TLS on both hosts");
      }
    }
    return peer.get();
  }

  void close_endpoints() {
    ucx::RequestParameters parameters;
    parameters.mask = ucx::kFlags, parameters.flags = ucx::kCloseByForce;
    std::vector<void *> closing;
    for (auto &[rank, peer] : peers_)
      if (peer->endpoint) closing.push_back(ucx_.ep_close_nbx(peer->endpoint, &parameters));
    const std::int64_t until = monotonic_ns() + kCloseNs;
    for (void *request : closing) {
      if (!ucx::is_request(request)) continue;
      while (ucx_.request_check_status(request) == ucx::kInProgress && monotonic_ns() < until) ucx_.worker_progress(worker_);
      ucx_.request_free(request);
    }
  }

  // Everything below is called with the lock.

  bool progress() {
    ++round_;
    const bool moved = ucx_.worker_progress(worker_) != 0;
    for (const Waiting &one : std::exchange(waiting_, {})) fetch(one);
    for (auto &[rank, peer] : peers_)
      for (auto &stream : peer->streams) {
        if (!stream) continue;
        if (stream->must_answer || stream->taken - stream->credited >= kCreditEvery) send_short(*stream, kState);
        if (stream->posted < stream->end) post(*stream);
      }
    return moved;
  }

  Status take_message(const void *header, std::size_t header_length, void *data, std::size_t length, const ucx::MessageParameters &parameters) {
    MessageHeader h;
    if (header_length != sizeof h) return ++strangers_, ucx::kOk;
    std::memcpy(&h, header, sizeof h);
    const auto at = peers_.find(h.rank);
    StreamMemory *stream = at != peers_.end() && h.number < at->second->streams.size() ? at->second->streams[h.number].get() : nullptr;
    if (!stream) return ++strangers_, ucx::kOk;
    StreamMemory &s = *stream;
    const bool fits = h.kind != kData || (length && length <= kMostAtOnce && h.offset >= s.received && h.offset + length <= s.taken + kRing &&
                                          h.offset % kRing + length <= kRing);
    if (h.key != s.receive_key || h.received > s.posted || h.taken > h.received || !fits) {
      ++s.strangers;
      return ucx::kOk;
    }
    s.their_received = std::max(s.their_received, h.received);
    s.their_taken = std::max(s.their_taken, h.taken);
    ++news_;
    if (h.kind == kAsk) s.must_answer = true;
    if (h.kind == kClose) s.is_closed = true;
    if (h.kind != kData) return ucx::kOk;
    if (parameters.attributes & ucx::kIsRendezvous) { // fetched after this callback
      waiting_.push_back({&s, data, h.offset, length});
      return ucx::kInProgress;
    }
    const char *from = static_cast<const char *>(data);
    std::uint64_t offset = h.offset;
    if (s.place_bytes && offset == s.received && s.received == s.taken) { // the reader has room: without the ring
      const std::size_t some = std::min(length, s.place_bytes);
      std::memcpy(s.place, from, some);
      s.place += some, s.place_bytes -= some, from += some, length -= some, offset += some;
      s.received += some, s.taken += some;
    }
    std::memcpy(s.in + offset % kRing, from, length);
    note_arrival(s, offset, offset + length);
    return ucx::kOk;
  }

  struct Waiting {
    StreamMemory *stream;
    void *data;
    std::uint64_t offset;
    std::size_t length;
  };
  struct Fetch {
    StreamMemory *stream;
    std::uint64_t offset, end;
    std::uint64_t *news;
  };

  void fetch(const Waiting &one) {
    auto *const fetch = new Fetch{one.stream, one.offset, one.offset + one.length, &news_};
    ucx::RequestParameters parameters;
    parameters.mask = ucx::kCallback | ucx::kUserData;
    parameters.user_data = fetch;
    parameters.callback.received = [](void *request, Status status, std::size_t, void *user_data) {
      finish_fetch(static_cast<Fetch *>(user_data), status);
      ucx::load_library().request_free(request);
    };
    void *const request = ucx_.am_recv_data_nbx(worker_, one.data, one.stream->in + one.offset % kRing, one.length, &parameters);
    if (!ucx::is_request(request)) finish_fetch(fetch, ucx::read_status(request));
  }

  static void finish_fetch(Fetch *fetch, Status status) {
    if (status == ucx::kOk) note_arrival(*fetch->stream, fetch->offset, fetch->end);
    else fetch->stream->is_closed = true;
    ++*fetch->news;
    delete fetch;
  }

  static void note_arrival(StreamMemory &s, std::uint64_t begin, std::uint64_t end) {
    if (begin > s.received) {
      s.arrived[begin] = end;
      return;
    }
    s.received = end;
    for (auto first = s.arrived.begin(); first != s.arrived.end() && first->first <= s.received; first = s.arrived.erase(first))
      s.received = std::max(s.received, first->second);
  }

  MessageHeader make_header(StreamMemory &s, MessageKind kind, std::uint64_t offset) {
    s.must_answer = false, s.credited = s.taken;
    return {s.send_key, offset, s.received, s.taken, std::uint16_t(me_), std::uint16_t(s.number), kind, {}};
  }

  void send_short(StreamMemory &s, MessageKind kind) {
    if (s.is_closed && kind != kClose) {
      s.must_answer = false, s.credited = s.taken;
      return;
    }
    auto *const header = new MessageHeader(make_header(s, kind, s.end));
    ucx::RequestParameters parameters;
    parameters.mask = ucx::kCallback | ucx::kUserData;
    parameters.user_data = header;
    parameters.callback.sent = [](void *request, Status, void *user_data) {
      delete static_cast<MessageHeader *>(user_data);
      ucx::load_library().request_free(request);
    };
    void *const request = ucx_.am_send_nbx(s.peer->endpoint, kMessage, header, sizeof *header, nullptr, 0, &parameters);
    if (ucx::is_request(request)) return;
    delete header;
    if (request) s.is_closed = true;
  }

  void post(StreamMemory &s) {
    while (s.posted < s.end && !s.is_closed) {
      const std::uint64_t length = std::min({s.end - s.posted, kMostAtOnce, kRing - s.posted % kRing});
      auto *const sending = new Sending{make_header(s, kData, s.posted), &s, nullptr, &news_};
      s.posts.push_back({s.posted + length, nullptr, false});
      sending->posted = &s.posts.back();
      ucx::RequestParameters parameters;
      parameters.mask = ucx::kCallback | ucx::kUserData;
      parameters.user_data = sending;
      parameters.callback.sent = [](void *request, Status status, void *user_data) {
        finish_sending(static_cast<Sending *>(user_data), status);
        ucx::load_library().request_free(request);
      };
      const char *const from = s.out + s.posted % kRing;
      s.posted += length;
      void *const request = ucx_.am_send_nbx(s.peer->endpoint, kMessage, &sending->header, sizeof(MessageHeader), from, length, &parameters);
      if (!ucx::is_request(request)) finish_sending(sending, ucx::read_status(request));
    }
  }

  struct Sending {
    MessageHeader header; // UCX reads it until the message is sent
    StreamMemory *stream;
    Posted *posted;
    std::uint64_t *news;
  };

  static void finish_sending(Sending *sending, Status status) {
    StreamMemory &s = *sending->stream;
    sending->posted->is_done = true;
    if (status != ucx::kOk) s.is_closed = true;
    for (; !s.posts.empty() && s.posts.front().is_done; s.posts.pop_front()) s.freed = s.posts.front().end;
    ++*sending->news;
    delete sending;
  }

  const ucx::Library &ucx_;
  Context context_;
  void *worker_ = nullptr;
  int events_ = -1, me_ = 0;
  std::string address_;
  std::function<void()> progress_;
  std::mutex lock_;
  std::map<int, std::unique_ptr<Peer>> peers_;
  std::vector<Waiting> waiting_;
  std::uint64_t round_ = 0, news_ = 0, strangers_ = 0;
  std::int64_t polled_ns_ = 0;
};

class UcxStream final : public Stream {
public:
  UcxStream(std::shared_ptr<Worker> worker, StreamMemory &memory) : worker_(std::move(worker)), s_(memory) {}

  int fd() const override { return -1; }
  bool needs_polling() const override { return true; }

  ssize_t read(void *to, std::size_t bytes) override {
    std::lock_guard<std::mutex> hold(worker_->lock_);
    worker_->polled_ns_ = monotonic_ns();
    std::size_t got = take(static_cast<char *>(to), bytes);
    if (!got) {
      s_.place = static_cast<char *>(to), s_.place_bytes = bytes;
      const bool asks_again = s_.seen_round == worker_->round_; // else another stream has just moved everything
      if (asks_again) worker_->progress();
      s_.seen_round = worker_->round_;
      got = bytes - s_.place_bytes;
      s_.place = nullptr, s_.place_bytes = 0;
      got += take(static_cast<char *>(to) + got, bytes - got);
    }
    if (s_.taken - s_.credited >= kCreditEvery) worker_->send_short(s_, kState);
    if (got) return ssize_t(got);
    return is_over() ? -1 : 0;
  }

  ssize_t write(const iovec *pieces, int count) override {
    std::lock_guard<std::mutex> hold(worker_->lock_);
    if (s_.is_closed || s_.has_ended) return -1;
    worker_->polled_ns_ = monotonic_ns();
    std::uint64_t space = s_.space();
    if (!space) {
      worker_->progress();
      space = s_.space();
    }
    std::size_t copied = 0;
    for (int k = 0; k < count && space; ++k) {
      const char *from = static_cast<const char *>(pieces[k].iov_base);
      const std::size_t bytes = std::min<std::uint64_t>(pieces[k].iov_len, space), at = s_.end % kRing, first = std::min<std::uint64_t>(bytes, kRing - at);
      std::memcpy(s_.out + at, from, first);
      std::memcpy(s_.out, from + first, bytes - first);
      s_.end += bytes, space -= bytes, copied += bytes;
    }
    worker_->post(s_);
    return s_.is_closed ? -1 : ssize_t(copied);
  }

  Ready prepare_wait(bool writes) override {
    std::lock_guard<std::mutex> hold(worker_->lock_);
    // No call of progress here: what it brings to another stream would not be seen before the wait.
    return {s_.received > s_.taken || is_over(), writes && (s_.is_closed || s_.space() > 0)};
  }

  std::int64_t longest_wait_ns() const override {
    std::lock_guard<std::mutex> hold(worker_->lock_);
    return s_.freed < s_.end ? 1'000'000 : ~(1ull << 63);
  }

  bool is_flushed() override {
    std::lock_guard<std::mutex> hold(worker_->lock_);
    worker_->progress();
    if (s_.their_received == s_.end || s_.is_closed) return true;
    const std::int64_t now = monotonic_ns();
    if (now - s_.request_ns > kAskNs) s_.request_ns = now, worker_->send_short(s_, kAsk);
    return false;
  }

  bool should_settle() const override {
    std::lock_guard<std::mutex> hold(worker_->lock_);
    return s_.end - s_.their_received > kLeftBehind && !s_.is_closed;
  }

  void end() override {
    std::lock_guard<std::mutex> hold(worker_->lock_);
    if (s_.has_ended) return;
    s_.has_ended = true;
    if (!s_.is_closed) worker_->send_short(s_, kClose), worker_->progress();
    s_.is_closed = true;
  }

  StreamState state() const override {
    std::lock_guard<std::mutex> hold(worker_->lock_);
    return {0, 0, s_.strangers + (s_.number == 0 && s_.peer == worker_->peers_.begin()->second.get() ? worker_->strangers_ : 0)};
  }

private:
  bool is_over() const { return s_.is_closed && s_.received == s_.taken; }

  std::size_t take(char *to, std::size_t bytes) {
    const std::size_t count = std::min<std::uint64_t>(bytes, s_.received - s_.taken);
    const std::size_t at = s_.taken % kRing, first = std::min<std::uint64_t>(count, kRing - at);
    std::memcpy(to, s_.in + at, first);
    std::memcpy(to + first, s_.in, count - first);
    s_.taken += count;
    return count;
  }

  std::shared_ptr<Worker> worker_;
  StreamMemory &s_;
};

std::unique_ptr<Stream> Worker::make_stream(int rank, int number, const std::string &address, std::uint64_t send_key, std::uint64_t receive_key) {
  std::lock_guard<std::mutex> hold(lock_);
  auto stream = std::make_unique<StreamMemory>();
  void *at = mmap(nullptr, 2 * kRing, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::runtime_error("the buffers of a stream over UCX cannot be allocated");
  StreamMemory &s = *stream;
  s.out = static_cast<char *>(at), s.in = s.out + kRing;
  s.number = number, s.send_key = send_key, s.receive_key = receive_key;
  Peer *const peer = connect(rank, address);
  s.peer = peer;
  if (int(peer->streams.size()) <= number) peer->streams.resize(std::size_t(number) + 1);
  peer->streams[number] = std::move(stream);
  return std::make_unique<UcxStream>(shared_from_this(), s);
}

} // namespace

std::shared_ptr<UcxWorker> UcxWorker::make(const std::string &devices) {
  const std::string problem = find_ucx_problem();
  if (!problem.empty()) throw std::runtime_error(problem);
  return std::make_shared<Worker>(devices);
}

std::string find_ucx_problem() { return ucx::load_library().problem; }

std::string ucx_version() {
  const ucx::Library &l = ucx::load_library();
  return std::to_string(l.major) + "." + std::to_string(l.minor) + "." + std::to_string(l.release);
}

} // namespace ridgeline
