// What ranks write into the streams between them: frames of 32 bytes, each followed by `length` bytes. Both hosts must have
// the same byte order (the handshake compares it).
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/segment.hpp"

namespace ridgeline {

constexpr std::uint16_t kFrameMagic = 0x5246; // "FR"

// call: the call of a rank, with small data. data: a part of the data of a call. message: send and recv, or a part of one.
// failure: what ended the communicator. waits: which rank this rank has been waiting for.
enum class FrameKind : std::uint8_t { call = 1, data, message, failure, waits };

struct Frame {
  std::uint16_t magic;
  std::uint8_t kind;
  std::uint8_t lanes;     // of a message: over how many streams it is cut
  std::uint32_t sequence; // of the call, or of the message between the two ranks
  std::uint32_t index;    // of the data within the call; of a message: its type
  std::uint32_t hash;     // of a message: of the name of a type without a reduction
  std::uint64_t total;    // bytes of the whole message
  std::uint64_t length;   // bytes that follow
};
static_assert(sizeof(Frame) == 32);

struct CallFrame { // what follows a frame of a call, before its small data
  Called called;
  char type_name[kTypeName];
};

struct FailureFrame {
  std::int32_t fault, rank, reported_by;
  std::uint32_t op, sequence;
  std::int32_t unused;
  std::int64_t timeout_ns;
};

constexpr std::size_t kInline = kSlot; // small data in the frame of a call, at most
constexpr std::size_t kControl = 64;   // bytes after a frame of a failure or a wait, at most

} // namespace ridgeline
