// Products of bytes by every instruction this CPU has, and by an emulation of tiles, against sums term by term.
// tests/native/test_int8.py compiles and runs it; it prints the instructions that were tested.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "encoder/float_loops.hpp"
#include "encoder/int8_tiles.hpp"

using namespace ridgeline;

namespace {

// AMX as its manual has it: eight tiles of 16 rows × 64 bytes; unsigned bytes of one tile by signed ones of another.
struct EmulatedTiles {
  static inline std::uint8_t tiles[8][16][64];
  static inline int configured = 0;
  static void configure(const TileConfig &config) {
    const auto *bytes = reinterpret_cast<const std::uint8_t *>(&config);
    for (int tile = 0; tile < 8; ++tile)
      if (bytes[0] != 1 || bytes[16 + 2 * tile] != 64 || bytes[48 + tile] != 16) std::printf("wrong configuration\n"), std::exit(1);
    std::memset(tiles, 0, sizeof tiles), ++configured;
  }
  static void release() { --configured; }
  template <int Tile> static void zero() { std::memset(tiles[Tile], 0, sizeof tiles[Tile]); }
  template <int Tile> static void load(const void *from, std::size_t step) {
    for (int row = 0; row < 16; ++row) std::memcpy(tiles[Tile][row], static_cast<const char *>(from) + row * step, 64);
  }
  template <int Tile> static void store(void *to, std::size_t step) {
    for (int row = 0; row < 16; ++row) std::memcpy(static_cast<char *>(to) + row * step, tiles[Tile][row], 64);
  }
  template <int Sums, int X, int Weights> static void multiply() {
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < 16; ++n) {
        std::int32_t sum;
        std::memcpy(&sum, &tiles[Sums][m][4 * n], 4);
        for (int k = 0; k < 16; ++k)
          for (int i = 0; i < 4; ++i) sum += std::int32_t(tiles[X][m][4 * k + i]) * std::int8_t(tiles[Weights][k][4 * n + i]);
        std::memcpy(&tiles[Sums][m][4 * n], &sum, 4);
      }
  }
};

std::mt19937 random_bits(7);
int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_bits); }

struct Problem {
  std::size_t rows, terms, columns, padded_terms, padded_rows;
  std::vector<std::int8_t> weights, packed;   // [column][term]; as BytePanel has them
  std::vector<std::uint8_t> x;                // [padded rows][padded terms], any bytes in the padding
  std::vector<float> x_scales, scales, bias, y; // y has a column more, which must stay
  std::vector<std::int32_t> sums;

  Problem(std::size_t rows_, std::size_t terms_, std::size_t columns_) : rows(rows_), terms(terms_), columns(columns_) {
    padded_terms = (terms + kTermMultiple - 1) / kTermMultiple * kTermMultiple, padded_rows = (rows + kColumns - 1) / kColumns * kColumns;
    weights.resize(columns * terms), packed.resize(columns * padded_terms), x.resize(padded_rows * padded_terms);
    sums.resize(columns), scales.resize(columns), bias.resize(columns), x_scales.resize(rows), y.resize(rows * (columns + 1), 7);
    const bool extreme = draw(0, 3) == 0; // the largest sums there are
    for (std::size_t c = 0; c < columns; ++c)
      for (std::size_t k = 0; k < terms; ++k) {
        const int w = extreme ? (c % 2 ? 127 : -127) : draw(-127, 127);
        weights[c * terms + k] = packed[(k / 4 * columns + c) * 4 + k % 4] = std::int8_t(w), sums[c] += 128 * w;
      }
    for (auto &byte : x) byte = std::uint8_t(extreme ? 255 : draw(0, 255));
    std::uniform_real_distribution<float> value(-1, 1);
    for (auto *part : {&x_scales, &scales, &bias})
      for (float &v : *part) v = value(random_bits);
  }
  BytePanel panel() const { return {packed.data(), terms, columns, scales.data(), bias.data(), sums.data()}; }
  std::int32_t sum(std::size_t r, std::size_t c, int zero) const {
    std::int32_t total = 0;
    for (std::size_t k = 0; k < terms; ++k) total += (x[r * padded_terms + k] - zero) * weights[c * terms + k];
    return total;
  }
};

bool check_products(Problem &problem, Isa isa, Int8Instructions by) {
  const std::size_t step = problem.columns + 1;
  select_encoder_loops(isa).multiply_bytes(by, problem.panel(), problem.x.data(), problem.x_scales.data(), problem.padded_terms, problem.rows, Activation::none,
                                           problem.y.data(), step);
  for (std::size_t r = 0; r < problem.rows; ++r)
    for (std::size_t c = 0; c <= problem.columns; ++c) {
      const float expected = c == problem.columns ? 7.0f : std::fma(float(problem.sum(r, c, 128)) * problem.scales[c], problem.x_scales[r], problem.bias[c]);
      if (std::memcmp(&problem.y[r * step + c], &expected, 4)) {
        std::printf("%s %s: row %zu column %zu of %zu x %zu x %zu is %a, not %a\n", name(isa), name(by), r, c, problem.rows, problem.terms, problem.columns,
                    double(problem.y[r * step + c]), double(expected));
        return false;
      }
    }
  return true;
}

bool check_tiles(const Problem &problem) {
  std::vector<int> written(problem.rows * problem.columns);
  bool right = true;
  cover_with_tiles<EmulatedTiles>(problem.panel(), problem.x.data(), problem.padded_terms, problem.rows,
                                  [&](std::size_t row, std::size_t column, std::size_t height, std::size_t width, const std::int32_t *sums) {
                                    right = right && EmulatedTiles::configured == 1;
                                    for (std::size_t r = 0; r < height; ++r)
                                      for (std::size_t c = 0; c < width; ++c) {
                                        ++written[(row + r) * problem.columns + column + c];
                                        right = right && sums[r * width + c] == problem.sum(row + r, column + c, 0);
                                      }
                                  });
  for (const int times : written) right = right && times == 1;
  if (!right || EmulatedTiles::configured) std::printf("tiles: %zu x %zu x %zu is wrong\n", problem.rows, problem.terms, problem.columns);
  return right && !EmulatedTiles::configured;
}

} // namespace

int main() {
  for (const Isa isa : supported_isas())
    for (const Int8Instructions by : supported_int8(isa)) std::printf("%s:%s ", name(isa), name(by));
  std::printf("emulated tiles\n");
  for (int trial = 0; trial < 60; ++trial) {
    Problem problem(std::size_t(trial < 40 ? trial : draw(1, 90)), std::size_t(16 * draw(1, 24)), std::size_t(16 * draw(1, 4)));
    if (!check_tiles(problem)) return 1;
    for (const Isa isa : supported_isas())
      for (const Int8Instructions by : supported_int8(isa))
        if (std::fill(problem.y.begin(), problem.y.end(), 7.0f), !check_products(problem, isa, by)) return 1;
  }
  std::printf("all the same bits\n");
}
