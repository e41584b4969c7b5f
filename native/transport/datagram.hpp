// A reliable byte stream over UDP: each packet carries its place in the stream and lands there, in any order.
//
// Receivers name what has arrived (selective acknowledgement); senders repeat what is missing, by time and by what was
// acknowledged after it (RACK, RFC 8985), limit what is on the way by CUBIC (RFC 9438), and pace it. Where the kernel can,
// it cuts and joins packets (GSO, GRO). The thread that makes calls moves the packets; while it does something else, one
// thread of the process does: it repeats, acknowledges, and sends heartbeats, whose absence shows that a rank has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "transport/stream.hpp"

namespace ridgeline {

// What each packet begins with. Then: payload (data), or pairs of u64 (acknowledgement: what arrived beyond `acknowledged`).
struct PacketHeader {
  std::uint64_t tag;          // SipHash-2-4 of the other fields and the pairs, by the key of this direction: from the handshake
  std::uint64_t offset;       // of the payload in the stream; of a close: its end
  std::uint64_t acknowledged; // the other direction has arrived up to here
  std::uint32_t stamp;        // µs; its receiver returns it in `echo`
  std::uint32_t echo;
  std::uint32_t window;       // bytes beyond `acknowledged` that may be on the way, in units of 256
  std::uint8_t kind;          // 1 data, 2 acknowledgement, 3 heartbeat, 4 close
  std::uint8_t flags;         // 1: acknowledge at once; 2: `echo` is one
  std::uint16_t repeats;      // packets that came twice, so far: they were repeated too early
};
static_assert(sizeof(PacketHeader) == 40);

struct DatagramOptions {
  std::uint64_t buffer_bytes = 4 << 20; // of each direction, at most
  std::int64_t heartbeat_ns = 200'000'000, silence_ns = 1'500'000'000; // between two; until the other rank counts as dead
};

// `fd` is a connected UDP socket. `progress` is called from another thread when something changed; it must not block.
std::unique_ptr<Stream> make_datagram_stream(int fd, std::uint64_t send_key, std::uint64_t receive_key, DatagramOptions options,
                                             std::function<void()> progress);

} // namespace ridgeline
