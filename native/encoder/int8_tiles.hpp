// Products of bytes on tiles of 16 rows × 64 bytes (AMX). A step multiplies 16 rows of x, 64 terms each, with 64 terms of 16
// columns. The layout of the weights, [terms / 4][columns][4], is the one that tiles need, so nothing is packed again.
//
// `Tiles` are the instructions; the tests have an emulation of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "encoder/float_loops.hpp"

namespace ridgeline {

constexpr std::size_t kTileRows = 16, kTileColumns = 16;

struct TileConfig { // as ldtilecfg reads it: all eight tiles have 16 rows of 64 bytes
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Writes sums [16 · Rows][16 · Columns] of x and the panel's columns from `column` on. Tiles 0 to 3 are the sums, 4 and 5 rows
// of x, 6 and 7 weights: each that is loaded is used Rows or Columns times.
template <class Tiles, int Rows, int Columns>
inline void sum_tiles(const BytePanel &panel, std::size_t column, const std::uint8_t *x, std::size_t x_step, std::int32_t *sums) {
  const std::size_t weight_step = 4 * panel.columns;
  const std::int8_t *w = panel.weight + 4 * column;
  Tiles::template zero<0>();
  if constexpr (Columns > 1) Tiles::template zero<1>();
  if constexpr (Rows > 1) Tiles::template zero<2>();
  if constexpr (Rows > 1 && Columns > 1) Tiles::template zero<3>();
  for (std::size_t k = 0; k < panel.terms; k += kTermMultiple, x += kTermMultiple, w += kTermMultiple / 4 * weight_step) {
    Tiles::template load<6>(w, weight_step);
    Tiles::template load<4>(x, x_step);
    Tiles::template multiply<0, 4, 6>();
    if constexpr (Columns > 1) Tiles::template load<7>(w + 4 * kTileColumns, weight_step), Tiles::template multiply<1, 4, 7>();
    if constexpr (Rows > 1) Tiles::template load<5>(x + kTileRows * x_step, x_step), Tiles::template multiply<2, 5, 6>();
    if constexpr (Rows > 1 && Columns > 1) Tiles::template multiply<3, 5, 7>();
  }
  constexpr std::size_t kStep = kTileColumns * Columns, kBytes = 4 * kStep;
  Tiles::template store<0>(sums, kBytes);
  if constexpr (Columns > 1) Tiles::template store<1>(sums + kTileColumns, kBytes);
  if constexpr (Rows > 1) Tiles::template store<2>(sums + kTileRows * kStep, kBytes);
  if constexpr (Rows > 1 && Columns > 1) Tiles::template store<3>(sums + kTileRows * kStep + kTileColumns, kBytes);
}

// Calls write(row, column, rows, columns, sums) for blocks that cover rows × the panel's columns, sums [rows][columns].
template <class Tiles, class Write>
inline void cover_with_tiles(const BytePanel &panel, const std::uint8_t *x, std::size_t x_step, std::size_t rows, const Write &write) {
  alignas(64) std::int32_t sums[4 * kTileRows * kTileColumns];
  Tiles::configure(TileConfig());
  for (std::size_t row = 0; row < rows; row += 2 * kTileRows) {
    const std::size_t height = std::min(2 * kTileRows, rows - row);
    for (std::size_t column = 0; column < panel.columns; column += 2 * kTileColumns) {
      const std::size_t width = std::min(2 * kTileColumns, panel.columns - column);
      const std::uint8_t *from = x + row * x_step;
      if (height > kTileRows) width > kTileColumns ? sum_tiles<Tiles, 2, 2>(panel, column, from, x_step, sums) : sum_tiles<Tiles, 2, 1>(panel, column, from, x_step, sums);
      else width > kTileColumns ? sum_tiles<Tiles, 1, 2>(panel, column, from, x_step, sums) : sum_tiles<Tiles, 1, 1>(panel, column, from, x_step, sums);
      write(row, column, height, width, sums);
    }
  }
  Tiles::release();
}

} // namespace ridgeline
