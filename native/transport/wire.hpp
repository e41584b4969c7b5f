// A network between network namespaces that delays, loses, doubles and reorders packets: for `ridgeline fabric hosts` on
// kernels without netem. Each namespace has a TUN device; one thread carries packets from each to the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace ridgeline {

struct WireOptions {
  std::int64_t delay_ns = 0;
  double loss = 0, twice = 0, late = 0;  // shares of packets
  std::int64_t late_ns = 2'000'000;      // a late packet comes later by this, after others
  std::uint64_t seed = 0;
};

class Wire {
public:
  // Host k is the namespace /run/netns/namespaces[k] and gets the packets to addresses[k] (IPv4, as a number). Makes the
  // devices; throws std::runtime_error, which names what cannot be made.
  Wire(const std::vector<std::string> &namespaces, std::vector<std::uint32_t> addresses, const std::string &device, WireOptions options);
  ~Wire();
  Wire(const Wire &) = delete;
  Wire &operator=(const Wire &) = delete;

  void end();
  std::uint64_t carried() const { return carried_; }
  std::uint64_t lost() const { return lost_; }

private:
  void run();

  std::vector<int> files_;
  std::vector<std::uint32_t> addresses_;
  WireOptions options_;
  int wake_ = -1;
  std::atomic<bool> is_ending_{false};
  std::atomic<std::uint64_t> carried_{0}, lost_{0};
  std::thread thread_;
};

} // namespace ridgeline
