// Base64 as RFC 4648 has it, with padding.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridgeline {

// The characters of `size` bytes.
constexpr std::size_t base64_length(std::size_t size) { return (size + 2) / 3 * 4; }

// Writes base64_length(size) characters. Three bytes are two lookups in a table of 4,096 pairs of characters.
void encode_base64(const std::uint8_t *bytes, std::size_t size, char *out);

} // namespace ridgeline
