// Encodes many texts on several threads: what every native tokenizer shares.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "threads/pool.hpp"

namespace ridgeline {

// A string as CPython holds it: 1, 2 or 4 bytes for each character, and a zero after the last.
struct Text {
  const void *data;
  std::int64_t size; // characters
  int width;
};

// `tokens` is from malloc. `invalid_text` is the first text with a lone surrogate (then there are no tokens), or -1.
struct EncodedTexts {
  std::int32_t *tokens;
  std::int64_t invalid_text;
};

// The buffers of threads, reused by the next call. A Worker has `std::vector<std::int32_t> tokens`, of which the first
// `used` are filled.
template <class Worker> class WorkerPool {
public:
  // Holds a worker while one thread needs it.
  class Lease {
  public:
    template <class Make> Lease(WorkerPool &pool, const Make &make) : pool(pool) {
      std::lock_guard lock(pool.mutex);
      if (!pool.idle.empty()) {
        worker = std::move(pool.idle.back());
        pool.idle.pop_back();
      } else {
        worker = make();
      }
      worker->used = 0;
    }
    ~Lease() {
      if (worker->tokens.size() > kMaxReused) std::vector<std::int32_t>().swap(worker->tokens);
      std::lock_guard lock(pool.mutex);
      pool.idle.push_back(std::move(worker));
    }
    Lease(const Lease &) = delete;
    Lease &operator=(const Lease &) = delete;
    Worker &operator*() const { return *worker; }

  private:
    WorkerPool &pool;
    std::unique_ptr<Worker> worker;
  };

private:
  static constexpr std::size_t kMaxReused = 4 << 20; // tokens of capacity that a worker keeps for the next call
  std::mutex mutex;
  std::vector<std::unique_ptr<Worker>> idle;
};

// Work in the thread pool must not throw: this holds the first exception for the caller.
class FirstError {
public:
  template <class Work> void run(const Work &work) noexcept {
    try {
      work();
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
  }
  void rethrow() const {
    if (first) std::rethrow_exception(first);
  }

private:
  std::mutex mutex;
  std::exception_ptr first;
};

// Writes the start of each text to `offsets` [texts + 1]. `make` returns a worker; `encode_text(worker, text)` appends the
// tokens of one text to the worker's, or returns false if there is a lone surrogate.
template <class Worker, class Make, class EncodeText>
EncodedTexts encode_texts(WorkerPool<Worker> &pool, const Make &make, const EncodeText &encode_text,
                          const std::vector<Text> &texts, std::int64_t *offsets, int threads) {
  constexpr std::int64_t kCharactersPerThread = 16 << 10; // fewer characters are not worth another thread
  constexpr std::int64_t kParallelCopy = 256 << 10;       // tokens: fewer are copied by one thread
  struct Piece { // texts from `from` on whose tokens are contiguous in a worker, from `begin` to `end`
    std::int64_t from;
    std::size_t begin, end;
  };
  struct Share {
    typename WorkerPool<Worker>::Lease worker;
    std::vector<Piece> pieces;
    Share(WorkerPool<Worker> &pool, const Make &make) : worker(pool, make) {}
  };
  const auto count = std::int64_t(texts.size());
  std::int64_t characters = 0;
  for (const Text &text : texts) characters += text.size;
  const std::int64_t n = std::max<std::int64_t>(1, std::min<std::int64_t>({threads, count, characters / kCharactersPerThread}));
  const std::int64_t piece_size = std::max<std::int64_t>(1, std::min<std::int64_t>(256, count / (8 * n)));
  std::atomic<std::int64_t> next{0}, invalid_text{count};
  std::mutex mutex;
  std::vector<std::unique_ptr<Share>> shares;
  FirstError first_error;

  run_parallel(int(n), [&](int) {
    first_error.run([&] {
      auto share = std::make_unique<Share>(pool, make);
      Worker &worker = *share->worker;
      for (std::int64_t from; (from = next.fetch_add(piece_size)) < count;) {
        const std::int64_t to = std::min(count, from + piece_size);
        const std::size_t begin = worker.used;
        for (std::int64_t k = from; k < to; ++k) {
          if (k + 2 < to) __builtin_prefetch(texts[std::size_t(k + 2)].data);
          const std::size_t before = worker.used;
          if (!encode_text(worker, texts[std::size_t(k)])) {
            std::int64_t smallest = invalid_text;
            while (k < smallest && !invalid_text.compare_exchange_weak(smallest, k)) {
            }
            break;
          }
          offsets[k + 1] = std::int64_t(worker.used - before);
        }
        share->pieces.push_back({from, begin, worker.used});
      }
      std::lock_guard lock(mutex);
      shares.push_back(std::move(share));
    });
  });
  first_error.rethrow();
  if (invalid_text < count) return {nullptr, invalid_text};

  offsets[0] = 0;
  for (std::int64_t k = 0; k < count; ++k) offsets[k + 1] += offsets[k];
  auto *tokens = static_cast<std::int32_t *>(std::malloc(std::size_t(std::max<std::int64_t>(offsets[count], 1)) * sizeof(std::int32_t)));
  if (!tokens) throw std::bad_alloc();
  std::atomic<std::size_t> turn{0};
  run_parallel(offsets[count] < kParallelCopy ? 1 : int(n), [&](int) {
    for (std::size_t k; (k = turn++) < shares.size();)
      for (const Piece &piece : shares[k]->pieces)
        std::copy((*shares[k]->worker).tokens.data() + piece.begin, (*shares[k]->worker).tokens.data() + piece.end,
                  tokens + offsets[piece.from]);
  });
  return {tokens, -1};
}

} // namespace ridgeline
