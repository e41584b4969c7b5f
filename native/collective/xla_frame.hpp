// The part of XLA's foreign function interface that a handler on the CPU needs, as the C structures of its stable ABI
// (xla/ffi/api/c_api.h, Apache-2.0): so the extension is built without jaxlib and works with any release that keeps it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridgeline::xla {

struct Extension {
  std::size_t struct_size;
  int type; // 1: the runtime asks for metadata
  Extension *next;
};
constexpr int kMetadata = 1;

struct ApiVersion {
  std::size_t struct_size;
  Extension *extensions;
  int major_version, minor_version;
};

struct Error;
struct ErrorArguments {
  std::size_t struct_size;
  Extension *extensions;
  const char *message;
  int code;
};
constexpr int kInvalidArgument = 3, kInternal = 13;

struct Api {
  std::size_t struct_size;
  Extension *extensions;
  ApiVersion version;
  const void *internal;
  Error *(*make_error)(ErrorArguments *);
};

struct Metadata {
  std::size_t struct_size;
  ApiVersion version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata *metadata;
};

constexpr int kToken = 17; // the type of a value that only keeps calls in order
struct Buffer {
  std::size_t struct_size;
  Extension *extensions;
  int type;
  void *data;
  std::int64_t rank;
  std::int64_t *dims;
};

struct Text {
  const char *data;
  std::size_t length;
};
struct Scalar {
  int type;
  void *value;
};
constexpr int kSignedInt64 = 5, kScalar = 3, kString = 4;

struct Buffers { // arguments or results
  std::size_t struct_size;
  Extension *extensions;
  std::int64_t size;
  int *kinds; // 1: a buffer
  Buffer **values;
};
struct Attributes {
  std::size_t struct_size;
  Extension *extensions;
  std::int64_t size;
  int *kinds;
  Text **names;
  void **values;
};

constexpr int kExecute = 3;
struct CallFrame {
  std::size_t struct_size;
  Extension *extensions;
  const Api *api;
  void *context;
  int stage;
  Buffers arguments, results;
  Attributes attributes;
};

} // namespace ridgeline::xla
