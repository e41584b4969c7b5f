#include "collective/xla_calls.hpp"

#include <cstring>

namespace ridgeline {
namespace {

xla::Error *make_error(const xla::CallFrame &frame, int code, const char *message) {
  xla::ErrorArguments arguments{sizeof(xla::ErrorArguments), nullptr, message, code};
  return frame.api->make_error(&arguments);
}

// The only buffer that is not a token.
const xla::Buffer *find_buffer(const xla::Buffers &all) {
  for (std::int64_t k = 0; k < all.size; ++k)
    if (all.values[k]->type != xla::kToken) return all.values[k];
  return nullptr;
}

std::uint64_t count_elements(const xla::Buffer &buffer) {
  std::uint64_t count = 1;
  for (std::int64_t k = 0; k < buffer.rank; ++k) count *= std::uint64_t(buffer.dims[k]);
  return count;
}

const void *find_attribute(const xla::Attributes &all, const char *name, int kind) {
  for (std::int64_t k = 0; k < all.size; ++k) {
    const xla::Text &text = *all.names[k];
    if (all.kinds[k] == kind && text.length == std::strlen(name) && !std::memcmp(text.data, name, text.length)) return all.values[k];
  }
  return nullptr;
}

bool read_number(const xla::Attributes &all, const char *name, std::int64_t &number) {
  const auto *scalar = static_cast<const xla::Scalar *>(find_attribute(all, name, xla::kScalar));
  if (!scalar || scalar->type != xla::kSignedInt64) return false;
  std::memcpy(&number, scalar->value, sizeof number);
  return true;
}

} // namespace

extern "C" xla::Error *ridgeline_xla_call(xla::CallFrame *frame) {
  if (frame->extensions && frame->extensions->type == xla::kMetadata) { // at registration: the version that this handler needs
    auto *extension = reinterpret_cast<xla::MetadataExtension *>(frame->extensions);
    extension->metadata->version = {sizeof(xla::ApiVersion), nullptr, 0, frame->api->version.minor_version};
    extension->metadata->traits = 0;
    return nullptr;
  }
  const xla::Buffer *in = find_buffer(frame->arguments), *out = find_buffer(frame->results);
  std::int64_t id, op, type, how, root, width;
  const auto *name = static_cast<const xla::Text *>(find_attribute(frame->attributes, "name", xla::kString));
  const bool is_complete = in && out && name && read_number(frame->attributes, "communicator", id) &&
                           read_number(frame->attributes, "op", op) && read_number(frame->attributes, "type", type) &&
                           read_number(frame->attributes, "how", how) && read_number(frame->attributes, "root", root) &&
                           read_number(frame->attributes, "width", width);
  if (!is_complete || frame->stage != xla::kExecute || op < 0 || op > std::int64_t(Op::broadcast))
    return make_error(*frame, xla::kInvalidArgument, "this call was not made by ridgeline.fabric.jax");
  const std::string type_name(name->data, name->length);
  const std::uint64_t count = count_elements(Op(op) == Op::reduce_scatter ? *out : *in) * std::uint64_t(width);
  const std::string error = run_xla_call(
      id, {Op(op), in->data, out->data, count, Number(type), Combine(how), int(root), 0, type_name.c_str()});
  return error.empty() ? nullptr : make_error(*frame, xla::kInternal, error.c_str());
}

} // namespace ridgeline
