#include "tokenizer/wordpiece.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS_WITHOUT_AVX512(WordPieceLoops, wordpiece_loops)

constexpr std::size_t kKept = 4 << 20;          // tokens of room that a worker keeps for the next call
constexpr std::int64_t kCharacters = 16 << 10;  // fewer than this are not worth another thread
constexpr std::int64_t kCopied = 256 << 10;     // the same for tokens to be copied

// A word may run over by one character's expansion, and characters are written eight bytes at a time.
Worker::Worker(int max_word) : word(std::size_t(4 * max_word) + 64), recent(std::size_t(1) << Recent::kBits) {}

WordPiece::WordPiece(const std::vector<std::string> &tokens, const WordPieceOptions &given)
    : vocabulary(tokens, given.unknown), options([&] {
        WordPieceOptions sorted = given;
        std::stable_sort(sorted.added.begin(), sorted.added.end(),
                         [](const Added &a, const Added &b) { return a.text.size() > b.text.size(); });
        return sorted;
      }()),
      table(given.characters, tokens) {
  std::vector<std::int32_t> one(4);
  for (const auto &[c, text] : table.alone()) {
    vocabulary.pieces(text.data(), int(text.size()), one.data());
    table.change(c) = Entry::of(Role::alone, std::uint32_t(one[0]));
  }
  for (const Added &added : options.added) table.change(added.text.at(0)).begins_added();
}

// A worker for as long as one thread needs it.
class WordPiece::Lent {
public:
  explicit Lent(WordPiece &home) : home(home) {
    std::lock_guard lock(home.door);
    if (!home.idle.empty()) {
      worker = std::move(home.idle.back());
      home.idle.pop_back();
    } else {
      worker = std::make_unique<Worker>(home.options.max_word);
    }
    worker->used = 0;
  }
  ~Lent() {
    if (worker->tokens.size() > kKept) std::vector<std::int32_t>().swap(worker->tokens);
    std::lock_guard lock(home.door);
    home.idle.push_back(std::move(worker));
  }
  Lent(const Lent &) = delete;
  Lent &operator=(const Lent &) = delete;
  Worker *operator->() const { return worker.get(); }
  Worker &operator*() const { return *worker; }

private:
  WordPiece &home;
  std::unique_ptr<Worker> worker;
};

namespace {

// Texts from `from` on of which the tokens lie together, at `begin` of a worker's.
struct Piece {
  std::int64_t from;
  std::size_t begin, end;
};

std::int32_t *room(std::int64_t count) {
  auto *p = static_cast<std::int32_t *>(std::malloc(std::size_t(std::max<std::int64_t>(count, 1)) * sizeof(std::int32_t)));
  if (!p) throw std::bad_alloc();
  return p;
}

// The team's threads must not throw: the first thing thrown waits for the caller.
class Caught {
public:
  template <class Work> void keep(const Work &work) noexcept {
    try {
      work();
    } catch (...) {
      std::lock_guard lock(door);
      if (!first) first = std::current_exception();
    }
  }
  void rethrow() const {
    if (first) std::rethrow_exception(first);
  }

private:
  std::mutex door;
  std::exception_ptr first;
};

} // namespace

WordPiece::Result WordPiece::encode(const std::vector<Text> &texts, std::int64_t *offsets, std::int64_t limit, int threads,
                                    Isa isa) {
  struct Share {
    Lent worker;
    std::vector<Piece> pieces;
    explicit Share(WordPiece &home) : worker(home) {}
  };
  const auto count = std::int64_t(texts.size());
  std::int64_t characters = 0;
  for (const Text &text : texts) characters += text.size;
  const std::int64_t n = std::max<std::int64_t>(1, std::min<std::int64_t>({threads, count, characters / kCharacters}));
  const std::int64_t some = std::max<std::int64_t>(1, std::min<std::int64_t>(256, count / (8 * n)));
  const auto loop = select_wordpiece_loops(isa);
  std::atomic<std::int64_t> next{0}, refused{count};
  std::mutex door;
  std::vector<std::unique_ptr<Share>> shares;
  Caught caught;

  run_parallel(int(n), [&](int) {
    caught.keep([&] {
      auto share = std::make_unique<Share>(*this);
      Worker &worker = *share->worker;
      for (std::int64_t from; (from = next.fetch_add(some)) < count;) {
        const std::int64_t to = std::min(count, from + some);
        const std::size_t begin = worker.used;
        for (std::int64_t k = from; k < to; ++k) {
          if (k + 2 < to) __builtin_prefetch(texts[std::size_t(k + 2)].data);
          const std::size_t before = worker.used;
          if (!loop.encode(*this, worker, texts[std::size_t(k)], limit)) {
            std::int64_t known = refused;
            while (k < known && !refused.compare_exchange_weak(known, k)) {
            }
            break;
          }
          offsets[k + 1] = std::int64_t(worker.used - before);
        }
        share->pieces.push_back({from, begin, worker.used});
      }
      std::lock_guard lock(door);
      shares.push_back(std::move(share));
    });
  });
  caught.rethrow();
  if (refused < count) return {nullptr, refused};

  offsets[0] = 0;
  for (std::int64_t k = 0; k < count; ++k) offsets[k + 1] += offsets[k];
  std::int32_t *tokens = room(offsets[count]);
  std::atomic<std::size_t> turn{0};
  run_parallel(offsets[count] < kCopied ? 1 : int(n), [&](int) {
    for (std::size_t k; (k = turn++) < shares.size();)
      for (const Piece &piece : shares[k]->pieces)
        std::copy(shares[k]->worker->tokens.data() + piece.begin, shares[k]->worker->tokens.data() + piece.end,
                  tokens + offsets[piece.from]);
  });
  return {tokens, -1};
}

} // namespace ridgeline
