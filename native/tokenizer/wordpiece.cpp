#include "tokenizer/wordpiece.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS_WITHOUT_AVX512(WordPieceLoops, wordpiece_loops)

constexpr std::size_t kMaxReused = 4 << 20;          // tokens of capacity that a worker keeps for the next call
constexpr std::int64_t kCharactersPerThread = 16 << 10;  // fewer characters are not worth another thread
constexpr std::int64_t kParallelCopy = 256 << 10;     // tokens: fewer are copied by one thread

// A word may exceed the limit by one expanded character, and characters are written eight bytes at a time.
Worker::Worker(int max_word) : word(std::size_t(4 * max_word) + 64), recent(std::size_t(1) << Recent::kBits) {}

WordPiece::WordPiece(const std::vector<std::string> &tokens, const WordPieceOptions &wordpiece_options)
    : vocabulary(tokens, wordpiece_options.unknown), options([&] {
        WordPieceOptions sorted = wordpiece_options;
        std::stable_sort(sorted.added.begin(), sorted.added.end(),
                         [](const Added &a, const Added &b) { return a.text.size() > b.text.size(); });
        return sorted;
      }()),
      table(wordpiece_options.characters, tokens) {
  std::vector<std::int32_t> one(4);
  for (const auto &[c, text] : table.alone()) {
    vocabulary.pieces(text.data(), int(text.size()), one.data());
    table.change(c) = Entry::of(Role::alone, std::uint32_t(one[0]));
  }
  for (const Added &added : options.added) table.change(added.text.at(0)).begins_added();
}

// Holds a worker while one thread needs it.
class WordPiece::WorkerLease {
public:
  explicit WorkerLease(WordPiece &tokenizer) : tokenizer(tokenizer) {
    std::lock_guard lock(tokenizer.mutex);
    if (!tokenizer.idle.empty()) {
      worker = std::move(tokenizer.idle.back());
      tokenizer.idle.pop_back();
    } else {
      worker = std::make_unique<Worker>(tokenizer.options.max_word);
    }
    worker->used = 0;
  }
  ~WorkerLease() {
    if (worker->tokens.size() > kMaxReused) std::vector<std::int32_t>().swap(worker->tokens);
    std::lock_guard lock(tokenizer.mutex);
    tokenizer.idle.push_back(std::move(worker));
  }
  WorkerLease(const WorkerLease &) = delete;
  WorkerLease &operator=(const WorkerLease &) = delete;
  Worker *operator->() const { return worker.get(); }
  Worker &operator*() const { return *worker; }

private:
  WordPiece &tokenizer;
  std::unique_ptr<Worker> worker;
};

namespace {

// Texts from `from` on whose tokens are contiguous in a worker, from `begin` to `end`.
struct Piece {
  std::int64_t from;
  std::size_t begin, end;
};

std::int32_t *allocate(std::int64_t count) {
  auto *p = static_cast<std::int32_t *>(std::malloc(std::size_t(std::max<std::int64_t>(count, 1)) * sizeof(std::int32_t)));
  if (!p) throw std::bad_alloc();
  return p;
}

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

} // namespace

WordPiece::Result WordPiece::encode(const std::vector<Text> &texts, std::int64_t *offsets, std::int64_t limit, int threads,
                                    Isa isa) {
  struct Share {
    WorkerLease worker;
    std::vector<Piece> pieces;
    explicit Share(WordPiece &tokenizer) : worker(tokenizer) {}
  };
  const auto count = std::int64_t(texts.size());
  std::int64_t characters = 0;
  for (const Text &text : texts) characters += text.size;
  const std::int64_t n = std::max<std::int64_t>(1, std::min<std::int64_t>({threads, count, characters / kCharactersPerThread}));
  const std::int64_t piece_size = std::max<std::int64_t>(1, std::min<std::int64_t>(256, count / (8 * n)));
  const auto loop = select_wordpiece_loops(isa);
  std::atomic<std::int64_t> next{0}, invalid_text{count};
  std::mutex mutex;
  std::vector<std::unique_ptr<Share>> shares;
  FirstError first_error;

  run_parallel(int(n), [&](int) {
    first_error.run([&] {
      auto share = std::make_unique<Share>(*this);
      Worker &worker = *share->worker;
      for (std::int64_t from; (from = next.fetch_add(piece_size)) < count;) {
        const std::int64_t to = std::min(count, from + piece_size);
        const std::size_t begin = worker.used;
        for (std::int64_t k = from; k < to; ++k) {
          if (k + 2 < to) __builtin_prefetch(texts[std::size_t(k + 2)].data);
          const std::size_t before = worker.used;
          if (!loop.encode(*this, worker, texts[std::size_t(k)], limit)) {
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
  std::int32_t *tokens = allocate(offsets[count]);
  std::atomic<std::size_t> turn{0};
  run_parallel(offsets[count] < kParallelCopy ? 1 : int(n), [&](int) {
    for (std::size_t k; (k = turn++) < shares.size();)
      for (const Piece &piece : shares[k]->pieces)
        std::copy(shares[k]->worker->tokens.data() + piece.begin, shares[k]->worker->tokens.data() + piece.end,
                  tokens + offsets[piece.from]);
  });
  return {tokens, -1};
}

} // namespace ridgeline
