#include "transport/wire.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <queue>
#include <random>
#include <stdexcept>
#include <tuple>

#include <arpa/inet.h>
#include <csignal>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "collective/segment.hpp"

namespace ridgeline {
namespace {

constexpr int kAtOnce = 64; // packets of one host before the others have their turn

struct Delayed {
  std::int64_t due;
  std::uint64_t number; // packets with the same delay keep their order
  int to;
  std::vector<char> packet;
  bool operator>(const Delayed &other) const { return std::tie(due, number) > std::tie(other.due, other.number); }
};

// In a thread of its own: a thread changes only its own namespace.
int open_device(const std::string &name, const std::string &device, std::string &problem) {
  const std::string path = "/run/netns/" + name;
  const int space = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET)) {
    problem = path + ": " + std::strerror(errno);
    if (space >= 0) close(space);
    return -1;
  }
  close(space);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) {
    problem = "/dev/net/tun: " + std::string(std::strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

} // namespace

Wire::Wire(const std::vector<std::string> &namespaces, std::vector<std::uint32_t> addresses, const std::string &device, WireOptions options)
    : addresses_(std::move(addresses)), options_(options) {
  std::string problem;
  std::thread([&] {
    for (const std::string &name : namespaces)
      if (problem.empty()) files_.push_back(open_device(name, device, problem));
  }).join();
  if (!problem.empty()) {
    for (int fd : files_)
      if (fd >= 0) close(fd);
    throw std::runtime_error(problem);
  }
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); // signals belong to the threads of Python
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Wire::~Wire() { end(); }

void Wire::end() {
  if (is_ending_.exchange(true)) return;
  const std::uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) return;
  thread_.join();
  for (int fd : files_) close(fd); // the devices end with them
  close(wake_);
}

void Wire::run() {
  std::mt19937_64 random(options_.seed);
  std::uniform_real_distribution<double> draw(0, 1);
  std::priority_queue<Delayed, std::vector<Delayed>, std::greater<Delayed>> delayed;
  std::vector<pollfd> polled;
  for (int fd : files_) polled.push_back({fd, POLLIN, 0});
  polled.push_back({wake_, POLLIN, 0});
  std::vector<char> packet(1 << 16);
  std::uint64_t number = 0;
  while (!is_ending_) {
    const std::int64_t wait_ns = delayed.empty() ? 1'000'000'000 : std::max<std::int64_t>(0, delayed.top().due - monotonic_ns());
    const timespec timeout{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
    if (ppoll(polled.data(), polled.size(), &timeout, nullptr) < 0) continue;
    for (std::size_t from = 0; from < files_.size(); ++from) {
      for (int k = 0; k < kAtOnce; ++k) {
        const ssize_t bytes = ::read(files_[from], packet.data(), packet.size());
        if (bytes <= 0) break;
        if (bytes < 20 || packet[0] >> 4 != 4) continue; // no IPv4
        std::uint32_t address;
        std::memcpy(&address, packet.data() + 16, sizeof address);
        std::size_t to = 0;
        while (to < files_.size() && htonl(addresses_[to]) != address) ++to;
        if (to == files_.size() || to == from) continue;
        if (draw(random) < options_.loss) {
          ++lost_;
          continue;
        }
        ++carried_;
        const int copies = draw(random) < options_.twice ? 2 : 1;
        const std::int64_t delay = options_.delay_ns + (draw(random) < options_.late ? options_.late_ns : 0);
        for (int copy = 0; copy < copies; ++copy) {
          if (delay) delayed.push({monotonic_ns() + delay, number++, int(to), {packet.data(), packet.data() + bytes}});
          else if (::write(files_[to], packet.data(), std::size_t(bytes)) < 0) ++lost_; // a full queue drops, as a switch does
        }
      }
    }
    for (const std::int64_t now = monotonic_ns(); !delayed.empty() && delayed.top().due <= now; delayed.pop())
      if (::write(files_[delayed.top().to], delayed.top().packet.data(), delayed.top().packet.size()) < 0) ++lost_;
  }
}

} // namespace ridgeline
