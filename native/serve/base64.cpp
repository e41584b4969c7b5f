#include "serve/base64.hpp"

#include <array>
#include <cstring>

namespace ridgeline {
namespace {

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
using Pair = std::array<char, 2>;

std::array<Pair, 4096> make_pairs() {
  std::array<Pair, 4096> pairs{};
  for (std::size_t k = 0; k < pairs.size(); ++k) pairs[k] = {kAlphabet[k >> 6], kAlphabet[k & 63]};
  return pairs;
}

} // namespace

void encode_base64(const std::uint8_t *bytes, std::size_t size, char *out) {
  static const std::array<Pair, 4096> pairs = make_pairs();
  const std::uint8_t *const last_triple = bytes + size / 3 * 3;
  for (; bytes != last_triple; bytes += 3, out += 4) {
    const std::uint32_t bits = std::uint32_t(bytes[0]) << 16 | std::uint32_t(bytes[1]) << 8 | bytes[2];
    std::memcpy(out, pairs[bits >> 12].data(), 2);
    std::memcpy(out + 2, pairs[bits & 4095].data(), 2);
  }
  const std::size_t rest = size % 3;
  if (rest == 0) return;
  const std::uint32_t bits = std::uint32_t(bytes[0]) << 16 | (rest == 2 ? std::uint32_t(bytes[1]) << 8 : 0);
  std::memcpy(out, pairs[bits >> 12].data(), 2);
  out[2] = rest == 2 ? kAlphabet[bits >> 6 & 63] : '=';
  out[3] = '=';
}

} // namespace ridgeline
