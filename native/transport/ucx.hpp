// Byte streams over UCX, which moves them by RDMA, TCP or shared memory, whatever it has and UCX_TLS allows.
//
// A communicator has one worker of UCX, and an endpoint to each other rank. The streams of that rank are active messages, each
// with its place in its stream: they land in a ring, in any order. A sender is at most the length of a ring ahead of what
// its receiver has taken. The thread that makes calls moves the messages; while it does something else, one thread of the
// process does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transport/stream.hpp"

namespace ridgeline {

class UcxWorker {
public:
  // devices: network devices as in UCX_NET_DEVICES; "": as the environment says. Throws std::runtime_error.
  static std::shared_ptr<UcxWorker> make(const std::string &devices);
  virtual ~UcxWorker() = default;
  virtual std::string address() const = 0; // which another worker needs to connect
  // Stream `number` of those to a rank, whose worker has this address. Both ends are made with the same two keys, exchanged.
  virtual std::unique_ptr<Stream> make_stream(int rank, int number, const std::string &address, std::uint64_t send_key,
                                              std::uint64_t receive_key) = 0;
  // Messages are taken from now on. `me`: the own rank; `progress` is called from another thread when something changed.
  virtual void start(int me, std::function<void()> progress) = 0;
  virtual bool poll() = 0; // moves messages of all streams; whether something moved
  virtual int fd() const = 0; // readable when there may be something to move, if `arm` was called before
  virtual bool arm() = 0;     // false: there is something to move
};

std::string find_ucx_problem(); // why UCX cannot be used on this host; "": it can
std::string ucx_version();

} // namespace ridgeline
