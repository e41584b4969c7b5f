#include "search/graph.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "search/top_candidates.hpp"
#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS(GraphLoops, compiled_graph_loops)

GraphLoops graph_loops(Isa isa) { return select_compiled_graph_loops(isa); }

namespace {

constexpr std::int64_t kLine = 64, kHugePage = 2 << 20;
constexpr std::int64_t kBatchShare = 16, kLargestBatch = 1024; // of an insertion: rows that do not see each other
constexpr std::uint32_t kNone = 0xffffffffu, kExpanded = 0x80000000u, kMaxRows = 0x7fffffffu;
constexpr float kLevels = 127.0f; // of a code
// Above 1 rows have more links (Vamana's alpha). Measured over 10,000 rows at recall .95 and .99: with 1.04 a walk takes 0.89
// to 0.95 of the time and building 1.3 times, with 1.1 0.80 to 0.88 and 3.4 to 5.3 times.
constexpr float kRelaxed = 1.04f;
constexpr float kFar = std::numeric_limits<float>::infinity();
// The error of a score from codes is a sum of many small terms, each even within half a step: its standard deviation is
// ‖q‖·scale/√12. Rows within kSpreads of it, for both rows that are compared, are compared by their values.
constexpr double kSpreads = 8 / 3.4641016;

std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

std::uint64_t mix(std::uint64_t x) { // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The level of a row: at least l with probability links^−l.
int draw_level(std::uint64_t row, std::int64_t links) {
  const double uniform = (double(mix(row) >> 11) + 1) / 9007199254740993.0;
  return int(std::min(30.0, -std::log(uniform) / std::log(double(std::max<std::int64_t>(2, links)))));
}

// Memory that is not initialized, on large pages where there are any: a walk reads it at random.
template <class T> class Buffer {
public:
  Buffer() = default;
  explicit Buffer(std::size_t size) : size_(size) {
    const std::size_t page = size * sizeof(T) >= std::size_t(kHugePage) ? kHugePage : kLine;
    const std::size_t bytes = round_up(std::max<std::int64_t>(1, size * sizeof(T)), page);
    data_.reset(static_cast<T *>(std::aligned_alloc(page, bytes)));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    if (page == std::size_t(kHugePage)) madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
  }
  T *data() const { return data_.get(); }
  T &operator[](std::size_t at) const { return data_.get()[at]; }
  std::size_t size() const { return size_; }

private:
  struct Free {
    void operator()(T *data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

} // namespace

struct Graph::Layers {
  std::int64_t stride, base_width, upper_width; // of a row: bytes of codes; words of its links
  std::vector<float> centre;
  Buffer<std::int8_t> codes;
  Buffer<std::uint32_t> links, upper;
  Buffer<std::uint8_t> levels;
  Buffer<std::uint64_t> upper_starts; // of a row: its list in level 1
  Buffer<std::uint32_t> nodes;        // the first row with the same values
  Buffer<std::uint32_t> next, last;   // the next row with the same values, or kNone; of a node: the last one
  std::int64_t node_count = 0;
  std::size_t upper_count = 0;
  double longest = 0; // ‖x − centre‖ that `extra` belongs to
  std::atomic<std::int64_t> count{0};
  std::atomic<std::uint32_t> entry{kNone};

  RowHeader &header(std::uint32_t row, std::int64_t width) const {
    return *reinterpret_cast<RowHeader *>(codes.data() + row * stride + width);
  }
  std::uint32_t next_copy(std::uint32_t row) const { return __atomic_load_n(next.data() + row, __ATOMIC_ACQUIRE); }
  void add_node(std::uint32_t row) { nodes[row] = last[row] = row, next[row] = kNone, ++node_count; }
  void add_copy(std::uint32_t node, std::uint32_t row) {
    nodes[row] = node, next[row] = kNone;
    __atomic_store_n(next.data() + last[node], row, __ATOMIC_RELEASE);
    last[node] = row;
  }
  // Whether a row with the values of this node is allowed.
  bool allows(const std::uint8_t *allowed, std::uint32_t node, std::uint32_t limit) const {
    for (std::uint32_t row = node; row < limit; row = next_copy(row))
      if (allowed[row]) return true;
    return false;
  }
  // The number of links, then the links. Readers may see a list while it changes: each word is a row that exists.
  std::uint32_t *list(std::uint32_t row, int level) const {
    return level ? upper.data() + (upper_starts[row] + level - 1) * upper_width : links.data() + row * base_width;
  }
};

struct Graph::Scratch {
  std::vector<std::uint8_t> seen; // of each row: the number of the walk that saw it
  std::uint8_t walk = 0;
  std::vector<Scored> beam, passed, chosen;
  std::vector<std::uint32_t> ids;
  std::vector<float> scores, query;
  std::vector<std::int16_t> values, other;

  void start(std::int64_t rows) {
    if (std::int64_t(seen.size()) < rows) seen.assign(rows + rows / 2, 0), walk = 0;
    if (++walk == 0) std::fill(seen.begin(), seen.end(), 0), walk = 1;
  }
  static Scratch &of_thread() {
    static thread_local Scratch scratch;
    return scratch;
  }
};

namespace {

std::uint32_t read_links(std::uint32_t *list, std::uint32_t most, std::vector<std::uint32_t> &ids) {
  const std::uint32_t n = std::min(most, __atomic_load_n(list, __ATOMIC_ACQUIRE));
  ids.resize(n);
  for (std::uint32_t i = 0; i < n; ++i) ids[i] = __atomic_load_n(list + 1 + i, __ATOMIC_RELAXED);
  return n;
}

template <class Rows> void write_links(std::uint32_t *list, const Rows &rows) {
  std::uint32_t n = 0;
  for (const auto &each : rows) __atomic_store_n(list + ++n, each.row, __ATOMIC_RELAXED);
  __atomic_store_n(list, n, __ATOMIC_RELEASE);
}

} // namespace

Graph::Graph(std::int64_t dim, std::int64_t links, std::int64_t effort, bool squared, bool unit)
    : dim_(dim), links_(links), effort_(effort), width_(round_up(dim, 64)),
      stride_(round_up(width_ + std::int64_t(sizeof(RowHeader)), kLine)), squared_(squared), unit_(unit) {}

std::shared_ptr<Graph::Layers> Graph::current() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return layers_;
}

std::int64_t Graph::count() const {
  const auto layers = current();
  return layers ? layers->count.load(std::memory_order_acquire) : 0;
}

// Layers with room for `count` rows and `upper` lists: the present ones, or a copy that replaces them.
std::shared_ptr<Graph::Layers> Graph::reserve(std::int64_t count, std::size_t upper) {
  const auto now = current();
  if (now && std::size_t(count) <= now->levels.size() && upper <= now->upper.size() / now->upper_width) return now;
  auto next = std::make_shared<Layers>();
  next->stride = stride_, next->base_width = 1 + 2 * links_, next->upper_width = 1 + links_;
  const std::int64_t old = now ? now->count.load() : 0;
  const std::size_t rows = old ? std::max<std::size_t>(count, old + old / 2) : count;
  const std::size_t lists = old ? std::max<std::size_t>(upper, upper + upper / 2) : upper;
  next->codes = Buffer<std::int8_t>(rows * stride_);
  next->links = Buffer<std::uint32_t>(rows * next->base_width);
  next->levels = Buffer<std::uint8_t>(rows);
  next->upper_starts = Buffer<std::uint64_t>(rows);
  next->nodes = Buffer<std::uint32_t>(rows);
  next->next = Buffer<std::uint32_t>(rows);
  next->last = Buffer<std::uint32_t>(rows);
  next->upper = Buffer<std::uint32_t>(lists * next->upper_width);
  if (now) {
    next->centre = now->centre, next->longest = now->longest, next->upper_count = now->upper_count;
    next->node_count = now->node_count;
    std::memcpy(next->codes.data(), now->codes.data(), old * stride_);
    std::memcpy(next->links.data(), now->links.data(), old * next->base_width * sizeof(std::uint32_t));
    std::memcpy(next->levels.data(), now->levels.data(), old);
    std::memcpy(next->upper_starts.data(), now->upper_starts.data(), old * sizeof(std::uint64_t));
    std::memcpy(next->nodes.data(), now->nodes.data(), old * sizeof(std::uint32_t));
    std::memcpy(next->next.data(), now->next.data(), old * sizeof(std::uint32_t));
    std::memcpy(next->last.data(), now->last.data(), old * sizeof(std::uint32_t));
    std::memcpy(next->upper.data(), now->upper.data(), now->upper_count * next->upper_width * sizeof(std::uint32_t));
    next->count = old, next->entry = now->entry.load();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  layers_ = next;
  return next;
}

void Graph::add(const float *values, std::int64_t total, int threads, Isa isa) {
  const std::int64_t from = count();
  if (total <= from) return;
  if (total > std::int64_t(kMaxRows)) throw std::invalid_argument("a graph has at most 2^31 - 1 rows");
  std::size_t upper = from ? current()->upper_count : 0;
  for (std::int64_t row = from; row < total; ++row) upper += draw_level(row, links_);
  const auto layers = reserve(total, upper);
  encode(*layers, values, from, total, threads);
  find_copies(*layers, values, from, total, threads);
  insert(*layers, from, total, threads, graph_loops(isa));
}

void Graph::encode(Layers &to, const float *values, std::int64_t from, std::int64_t total, int threads) {
  if (!from) { // codes are of differences to the mean of the first rows
    std::vector<double> sums(dim_, 0.0);
    for (std::int64_t row = 0; row < total; ++row)
      for (std::int64_t i = 0; i < dim_; ++i) sums[i] += values[row * dim_ + i];
    to.centre.resize(dim_);
    for (std::int64_t i = 0; i < dim_; ++i) to.centre[i] = float(sums[i] / double(total));
  }
  std::vector<double> squares(total - from);
  parallel_for(total - from, 256, threads, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t at = first; at < last; ++at) {
      const float *x = values + (from + at) * dim_;
      std::int8_t *codes = to.codes.data() + (from + at) * stride_;
      std::memset(codes, 0, stride_);
      float largest = 0;
      double square = 0;
      for (std::int64_t i = 0; i < dim_; ++i) {
        const float difference = x[i] - to.centre[i];
        largest = std::max(largest, std::fabs(difference)), square += double(difference) * difference;
      }
      const float scale = largest / kLevels;
      if (scale > 0 && std::isfinite(1 / scale))
        for (std::int64_t i = 0; i < dim_; ++i) codes[i] = std::int8_t(std::nearbyint((x[i] - to.centre[i]) / scale));
      to.header(std::uint32_t(from + at), width_) = {scale, float(square / 2), 0, 0};
      squares[at] = square;
    }
  });
  if (squared_ || unit_) return;
  // By one more dimension all rows become as long as the longest one, so that the row with the largest inner product is
  // the nearest one. A row that is longer than those before changes this dimension of all rows.
  double largest = to.longest * to.longest;
  for (const double square : squares) largest = std::max(largest, square);
  const std::int64_t first = largest > to.longest * to.longest ? 0 : from;
  for (std::int64_t row = first; row < total; ++row) {
    RowHeader &header = to.header(std::uint32_t(row), width_);
    const double square = 2.0 * header.half - double(header.extra) * header.extra;
    header.extra = float(std::sqrt(std::max(0.0, largest - square)));
    header.half = float((square + double(header.extra) * header.extra) / 2);
  }
  to.longest = std::sqrt(largest);
}

// Makes each new row a node, or a copy of the node with the same values.
void Graph::find_copies(Layers &layers, const float *values, std::int64_t from, std::int64_t total, int threads) {
  const auto hash = [&](std::int64_t row) {
    std::uint64_t state = 0, word;
    for (std::int64_t at = 0; at < width_; at += sizeof word) {
      std::memcpy(&word, layers.codes.data() + row * stride_ + at, sizeof word);
      state = mix(state ^ word);
    }
    return state;
  };
  const bool renew = table_.size() < 2 * std::size_t(total);
  const std::int64_t first = renew ? 0 : from;
  std::vector<std::uint64_t> hashes(total - first);
  parallel_for(total - first, 1024, threads, [&](std::int64_t low, std::int64_t high) {
    for (std::int64_t at = low; at < high; ++at) hashes[at] = hash(first + at);
  });
  if (renew) {
    std::size_t size = 64;
    while (size < 4 * std::size_t(total)) size *= 2;
    table_.assign(size, kNone);
  }
  const std::uint64_t mask = table_.size() - 1;
  for (std::int64_t row = first; row < total; ++row) {
    if (row < from && layers.nodes[row] != row) continue;
    std::uint64_t slot = hashes[row - first] & mask;
    std::uint32_t node;
    for (; (node = table_[slot]) != kNone; slot = (slot + 1) & mask)
      if (row >= from && !std::memcmp(layers.codes.data() + node * stride_, layers.codes.data() + row * stride_, width_) &&
          std::equal(values + row * dim_, values + (row + 1) * dim_, values + std::int64_t(node) * dim_))
        break;
    if (node == kNone) table_[slot] = std::uint32_t(row);
    if (row < from) continue;
    if (node == kNone) layers.add_node(std::uint32_t(row));
    else layers.add_copy(node, std::uint32_t(row));
  }
}

// A row as the query of a walk that builds: its scores are −½ · squared distance.
WalkQuery Graph::row_query(const Layers &layers, std::uint32_t row, std::vector<std::int16_t> &values) const {
  const std::int8_t *codes = layers.codes.data() + row * stride_;
  values.resize(width_);
  for (std::int64_t i = 0; i < width_; ++i) values[i] = codes[i];
  const RowHeader header = layers.header(row, width_);
  return {values.data(), width_, header.scale, header.extra, 1.0f, header.half};
}

// Goes to the nearest row of each level from `from` down to `to` + 1, always to a better neighbour.
std::uint32_t Graph::descend(const Layers &layers, const WalkQuery &query, std::uint32_t start, int from, int to,
                             std::uint32_t limit, const GraphLoops &loops, Scratch &scratch) const {
  float best;
  loops.score(query, layers.codes.data(), stride_, &start, 1, &best);
  for (int level = from; level > to; --level)
    for (bool better = true; better;) {
      better = false;
      const std::uint32_t n = read_links(layers.list(start, level), std::uint32_t(links_), scratch.ids);
      scratch.scores.resize(n);
      loops.score(query, layers.codes.data(), stride_, scratch.ids.data(), n, scratch.scores.data());
      for (std::uint32_t i = 0; i < n; ++i)
        if (scratch.scores[i] > best && scratch.ids[i] < limit) best = scratch.scores[i], start = scratch.ids[i], better = true;
    }
  return start;
}

// Leaves the best `effort` rows that it reaches in scratch.beam, best first, and all allowed ones in scratch.passed.
void Graph::walk(const Layers &layers, const WalkQuery &query, std::uint32_t start, int level, std::int64_t effort,
                 std::uint32_t limit, const std::uint8_t *allowed, std::uint32_t skipped, const GraphLoops &loops,
                 Scratch &scratch) const {
  const std::int8_t *codes = layers.codes.data();
  const std::uint32_t most = std::uint32_t(level ? links_ : 2 * links_);
  std::vector<Scored> &beam = scratch.beam;
  std::vector<std::uint32_t> &ids = scratch.ids;
  scratch.start(limit);
  beam.clear(), scratch.passed.clear();
  std::uint8_t *seen = scratch.seen.data();
  const std::uint8_t now = scratch.walk;
  if (skipped < limit && layers.next_copy(skipped) < limit) skipped = kNone; // its copies are not skipped
  if (skipped < limit) seen[skipped] = now;
  float first;
  loops.score(query, codes, stride_, &start, 1, &first);
  seen[start] = now;
  beam.push_back({first, start});
  if (allowed && start != skipped && layers.allows(allowed, start, limit)) scratch.passed.push_back(beam[0]);
  for (std::size_t next = 0; next < beam.size();) {
    if (beam[next].row & kExpanded) {
      ++next;
      continue;
    }
    std::uint32_t *list = layers.list(beam[next].row, level);
    beam[next].row |= kExpanded;
    const std::uint32_t links = std::min(most, __atomic_load_n(list, __ATOMIC_ACQUIRE));
    ids.resize(links);
    std::uint32_t n = 0;
    for (std::uint32_t i = 0; i < links; ++i) {
      const std::uint32_t row = __atomic_load_n(list + 1 + i, __ATOMIC_RELAXED);
      if (row >= limit || seen[row] == now) continue;
      seen[row] = now, ids[n++] = row;
    }
    scratch.scores.resize(n);
    loops.score(query, codes, stride_, ids.data(), n, scratch.scores.data());
    for (std::uint32_t i = 0; i < n; ++i) {
      const Scored each{scratch.scores[i], ids[i]};
      if (allowed && layers.allows(allowed, each.row, limit)) scratch.passed.push_back(each);
      if (std::int64_t(beam.size()) >= effort) {
        if (!(each.score > beam.back().score)) continue;
        beam.pop_back();
      }
      const auto at = std::upper_bound(beam.begin(), beam.end(), each, [](const Scored &a, const Scored &b) { return a.score > b.score; });
      next = std::min(next, std::size_t(at - beam.begin()));
      beam.insert(at, each);
    }
    while (next < beam.size() && (beam[next].row & kExpanded)) ++next;
    if (next < beam.size()) {
      const std::uint32_t *list_ahead = layers.list(beam[next].row, level);
      for (std::uint32_t word = 0; word <= most; word += 16) __builtin_prefetch(list_ahead + word);
    }
  }
  std::size_t to = 0;
  for (Scored &each : beam) {
    each.row &= ~kExpanded;
    if (each.row != skipped) beam[to++] = each;
  }
  beam.resize(to);
}

// Keeps up to `most` candidates, the nearest first, each nearer to the query than kRelaxed times its distance to every kept
// one: so links lead in different directions. Of rows equal to the query at most half of the links are kept.
void Graph::choose(const Layers &layers, std::vector<Scored> &candidates, std::int64_t most, const GraphLoops &loops,
                   Scratch &scratch) const {
  constexpr std::size_t kPiece = 8;
  std::vector<Scored> &chosen = scratch.chosen;
  std::uint32_t ids[kPiece];
  float scores[kPiece];
  std::int64_t equal = 0;
  chosen.clear();
  for (const Scored &each : candidates) {
    if (std::int64_t(chosen.size()) >= most) break;
    const WalkQuery query = row_query(layers, each.row, scratch.other);
    bool good = true, repeats = false;
    for (std::size_t from = 0; good && from < chosen.size(); from += kPiece) {
      const std::size_t n = std::min(kPiece, chosen.size() - from);
      for (std::size_t i = 0; i < n; ++i) ids[i] = chosen[from + i].row;
      loops.score(query, layers.codes.data(), stride_, ids, n, scores);
      for (std::size_t i = 0; i < n; ++i) {
        good &= !(kRelaxed * kRelaxed * scores[i] > each.score); // scores are -1/2 * squared distance
        repeats |= scores[i] == each.score && chosen[from + i].score == each.score;
      }
    }
    if (repeats && ++equal > most / 2) continue;
    if (good) chosen.push_back(each);
  }
  candidates.swap(chosen);
}

namespace {

// Best first; equal scores by chance, so that among many equal rows all are linked to.
template <class Scored> void sort_candidates(std::vector<Scored> &candidates, std::uint32_t row) {
  std::sort(candidates.begin(), candidates.end(), [row](const Scored &a, const Scored &b) {
    if (a.score != b.score) return a.score > b.score;
    return mix((std::uint64_t(row) << 32) ^ a.row) < mix((std::uint64_t(row) << 32) ^ b.row);
  });
}

} // namespace

void Graph::insert(Layers &layers, std::int64_t from, std::int64_t total, int threads, const GraphLoops &loops) {
  std::vector<std::uint32_t> nodes;
  for (std::int64_t row = from; row < total; ++row) {
    const bool copy = layers.nodes[row] != row;
    const int level = copy ? 0 : draw_level(row, links_);
    layers.levels[row] = std::uint8_t(level), layers.upper_starts[row] = layers.upper_count, layers.upper_count += level;
    for (int l = 0; l <= level; ++l) *layers.list(std::uint32_t(row), l) = 0;
    if (!copy) nodes.push_back(std::uint32_t(row));
  }
  const std::size_t end = nodes.size();
  std::int64_t inserted = layers.node_count - std::int64_t(end);
  std::size_t first = 0;
  if (!from) layers.entry = 0, inserted = 1, first = 1;
  layers.count.store(first < end ? nodes[first] : total, std::memory_order_release);
  for (std::size_t last; first < end; inserted += last - first, first = last) {
    last = std::min(end, first + std::size_t(std::clamp<std::int64_t>(inserted / kBatchShare, 1, kLargestBatch)));
    const std::uint32_t entry = layers.entry.load(), limit = nodes[first];
    const int top = layers.levels[entry];
    std::vector<std::vector<Link>> links(std::size_t(top + 1));
    std::mutex merging;
    parallel_for(std::int64_t(last - first), 8, threads, [&](std::int64_t low, std::int64_t high) {
      Scratch &scratch = Scratch::of_thread();
      std::vector<std::vector<Link>> new_links(std::size_t(top + 1));
      for (std::int64_t each = low; each < high; ++each) {
        const std::uint32_t row = nodes[first + each];
        const WalkQuery query = row_query(layers, row, scratch.values);
        const int level = std::min<int>(top, layers.levels[row]);
        std::uint32_t start = descend(layers, query, entry, top, level, limit, loops, scratch);
        for (int l = level; l >= 0; --l) {
          walk(layers, query, start, l, effort_, limit, nullptr, kNone, loops, scratch);
          start = scratch.beam[0].row;
          sort_candidates(scratch.beam, row);
          choose(layers, scratch.beam, l ? links_ : 2 * links_, loops, scratch);
          write_links(layers.list(row, l), scratch.beam);
          for (const Scored &link : scratch.beam) new_links[l].push_back({link.row, {link.score, row}});
        }
      }
      std::lock_guard<std::mutex> lock(merging);
      for (int l = 0; l <= top; ++l) links[l].insert(links[l].end(), new_links[l].begin(), new_links[l].end());
    });
    layers.count.store(last < end ? nodes[last] : total, std::memory_order_release);
    for (int l = 0; l <= top; ++l) add_back_links(layers, links[l], l, threads, loops);
    for (std::size_t each = first; each < last; ++each)
      if (layers.levels[nodes[each]] > layers.levels[layers.entry.load()]) layers.entry.store(nodes[each], std::memory_order_release);
  }
}

// Links rows to new rows; a full list is chosen again.
void Graph::add_back_links(Layers &layers, std::vector<Link> &links, int level, int threads, const GraphLoops &loops) {
  const std::int64_t most = level ? links_ : 2 * links_;
  std::sort(links.begin(), links.end(), [](const Link &a, const Link &b) {
    return a.first != b.first ? a.first < b.first : a.second.row < b.second.row;
  });
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < links.size(); ++i)
    if (!i || links[i].first != links[i - 1].first) starts.push_back(i);
  starts.push_back(links.size());
  parallel_for(std::int64_t(starts.size()) - 1, 32, threads, [&](std::int64_t low, std::int64_t high) {
    Scratch &scratch = Scratch::of_thread();
    std::vector<Scored> candidates;
    for (std::int64_t group = low; group < high; ++group) {
      const std::uint32_t row = links[starts[group]].first;
      std::uint32_t *list = layers.list(row, level);
      const std::uint32_t n = read_links(list, std::uint32_t(most), scratch.ids);
      candidates.clear();
      for (std::size_t i = starts[group]; i < starts[group + 1]; ++i) candidates.push_back(links[i].second);
      if (std::int64_t(n + candidates.size()) <= most) {
        for (std::size_t i = 0; i < candidates.size(); ++i)
          __atomic_store_n(list + 1 + n + i, candidates[i].row, __ATOMIC_RELAXED);
        __atomic_store_n(list, std::uint32_t(n + candidates.size()), __ATOMIC_RELEASE);
        continue;
      }
      const WalkQuery query = row_query(layers, row, scratch.values);
      scratch.scores.resize(n);
      loops.score(query, layers.codes.data(), stride_, scratch.ids.data(), n, scratch.scores.data());
      for (std::uint32_t i = 0; i < n; ++i) candidates.push_back({scratch.scores[i], scratch.ids[i]});
      sort_candidates(candidates, row);
      choose(layers, candidates, most, loops, scratch);
      write_links(list, candidates);
    }
  });
}

std::int64_t Graph::search(const float *queries, std::int64_t count, const GraphSearch &search, double *scores, std::int64_t *rows,
                   int threads, Isa isa) const {
  const SearchLoops loops = search_loops(isa);
  for (std::int64_t q = 0; q < count; ++q) {
    const double length = std::sqrt(loops.dot(queries + q * dim_, queries + q * dim_, dim_));
    const double used = search.scale_queries ? 1.0 : length;
    if (!(length < search.too_large) || !(used * search.longest + search.longest * search.longest / 2 < search.too_large)) return -1;
  }
  const auto layers = current();
  parallel_for(count, 1, threads, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t q = from; q < to; ++q)
      search_one(*layers, queries + q * dim_, search, search.skipped && search.skipped[q] >= 0 ? std::uint32_t(search.skipped[q]) : kNone,
                 scores + q * search.k, rows + q * search.k, isa, Scratch::of_thread());
  });
  std::int64_t missing = 0;
  for (std::int64_t q = 0; q < count; ++q) missing += rows[(q + 1) * search.k - 1] < 0;
  return missing;
}

void Graph::search_one(const Layers &layers, const float *query, const GraphSearch &search, std::uint32_t skipped,
                       double *scores, std::int64_t *rows, Isa isa, Scratch &scratch) const {
  const SearchLoops loops = search_loops(isa);
  const GraphLoops walking = graph_loops(isa);
  const double length = std::sqrt(loops.dot(query, query, dim_));
  scratch.query.assign(query, query + dim_);
  if (search.scale_queries && length > 0)
    for (std::int64_t i = 0; i < dim_; ++i) scratch.query[i] = float(double(query[i]) / length);
  query = scratch.query.data();

  // The query in 16 bits, so small that the sum of its products with codes stays within 32 bits.
  double largest = 0, sum = 0, square = 0;
  const auto at = [&](std::int64_t i) { return squared_ ? double(query[i]) - double(layers.centre[i]) : double(query[i]); };
  for (std::int64_t i = 0; i < dim_; ++i) {
    const double value = at(i), size = std::fabs(value);
    largest = std::max(largest, size), sum += size, square += value * value;
  }
  const double scale = std::max(largest / 32767, sum / (16'000'000 - double(dim_)));
  scratch.values.assign(width_, 0);
  if (scale > 0)
    for (std::int64_t i = 0; i < dim_; ++i) scratch.values[i] = std::int16_t(std::nearbyint(at(i) / scale));
  const WalkQuery walked{scratch.values.data(), width_, float(scale), 0.0f, squared_ ? 1.0f : 0.0f, 0.0f};

  const std::uint32_t entry = layers.entry.load(std::memory_order_acquire);
  const std::uint32_t limit = std::uint32_t(std::min(search.count, layers.count.load(std::memory_order_acquire)));
  std::uint32_t start = 0;
  if (entry < limit) start = descend(layers, walked, entry, layers.levels[entry], 0, limit, walking, scratch);
  walk(layers, walked, start, 0, search.effort, limit, search.allowed, skipped, walking, scratch);
  std::vector<Scored> &results = search.allowed ? scratch.passed : scratch.beam;
  const auto better = [](const Scored &a, const Scored &b) { return a.score > b.score; };
  // The rows of a node that may be returned, up to `most`; of equal rows the first ones come first.
  const auto for_rows = [&](std::uint32_t node, std::int64_t most, const auto &use) {
    for (std::uint32_t row = node; row < limit && most > 0; row = layers.next_copy(row))
      if (row != skipped && (!search.allowed || search.allowed[row])) use(row), --most;
  };
  if (search.allowed) {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < results.size() && count < search.least; ++i)
      for_rows(results[i].row, search.least - count, [&](std::uint32_t) { ++count; });
    if (count < search.least) results.clear();
  }
  if (!results.empty()) {
    const std::size_t k = std::min(std::size_t(search.k), results.size());
    if (search.allowed) std::nth_element(results.begin(), results.begin() + k - 1, results.end(), better);
    const float last = results[k - 1].score;
    float steps = 0;
    for (std::size_t i = 0; i < k; ++i) steps = std::max(steps, layers.header(results[i].row, width_).scale);
    const double spread = kSpreads * std::sqrt(square);
    std::size_t to = k;
    for (std::size_t i = to; i < results.size(); ++i)
      if (double(results[i].score) >= last - spread * std::max(steps, layers.header(results[i].row, width_).scale)) results[to++] = results[i];
    results.resize(to);
  }
  struct Exact {
    double score;
    std::int64_t row, id;
  };
  std::vector<Exact> exact;
  exact.reserve(results.size());
  for (const Scored &each : results) {
    const float *x = search.values + std::int64_t(each.row) * dim_;
    const double score = squared_ ? loops.distance(query, x, dim_) : -loops.dot(query, x, dim_);
    for_rows(each.row, search.ids ? std::int64_t(limit) : search.k, [&](std::uint32_t row) {
      exact.push_back({score, row, search.ids ? search.ids[row] : row});
    });
  }
  const std::int64_t k = std::min<std::int64_t>(search.k, exact.size());
  std::partial_sort(exact.begin(), exact.begin() + k, exact.end(), [](const Exact &a, const Exact &b) {
    return a.score != b.score ? a.score < b.score : a.id < b.id;
  });
  for (std::int64_t i = 0; i < search.k; ++i) {
    scores[i] = i >= k ? (squared_ ? double(kFar) : -double(kFar)) : squared_ ? exact[i].score : -exact[i].score;
    rows[i] = i < k ? exact[i].row : -1;
  }
}

std::shared_ptr<Graph> Graph::select(const std::int64_t *rows, std::int64_t count, int threads, Isa isa) const {
  auto out = std::make_shared<Graph>(dim_, links_, effort_, squared_, unit_);
  const auto from = current();
  if (!from || !count) return out;
  const GraphLoops loops = graph_loops(isa);
  const std::int64_t old = from->count.load();
  std::vector<std::uint32_t> numbers(old, kNone); // of a node: the first of the rows that stay
  std::size_t upper = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= old) throw std::invalid_argument("a row lies outside the graph");
    const std::uint32_t node = from->nodes[rows[i]];
    if (numbers[node] == kNone) numbers[node] = std::uint32_t(i), upper += std::max(from->levels[node], std::uint8_t(draw_level(i, links_)));
  }
  const auto to = out->reserve(count, upper);
  to->centre = from->centre, to->longest = from->longest;
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(to->codes.data() + i * stride_, from->codes.data() + rows[i] * stride_, stride_);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t node = numbers[from->nodes[rows[i]]];
    if (node == i) to->add_node(node);
    else to->add_copy(node, std::uint32_t(i));
  }
  if (2 * count < old) { // most links lead to missing rows
    out->insert(*to, 0, count, threads, loops);
    return out;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    to->levels[i] = to->nodes[i] == i ? from->levels[from->nodes[rows[i]]] : 0, to->upper_starts[i] = to->upper_count, to->upper_count += to->levels[i];
    if (to->entry == kNone || to->levels[i] > to->levels[to->entry]) to->entry = std::uint32_t(i);
  }
  parallel_for(count, 64, threads, [&](std::int64_t low, std::int64_t high) {
    Scratch &scratch = Scratch::of_thread();
    std::vector<std::uint32_t> links, more;
    std::vector<Scored> candidates;
    for (std::int64_t i = low; i < high; ++i) {
      if (to->nodes[i] != i) {
        *to->list(std::uint32_t(i), 0) = 0;
        continue;
      }
      for (int level = 0; level <= to->levels[i]; ++level) {
        const std::int64_t most = level ? links_ : 2 * links_;
        std::vector<std::uint32_t> neighbours;
        bool repair = false;
        read_links(from->list(from->nodes[rows[i]], level), std::uint32_t(most), links);
        for (const std::uint32_t link : links) {
          if (numbers[link] != kNone) {
            neighbours.push_back(numbers[link]);
            continue;
          }
          repair = true;
          read_links(from->list(link, level), std::uint32_t(most), more);
          for (const std::uint32_t next : more)
            if (numbers[next] != kNone && numbers[next] != i) neighbours.push_back(numbers[next]);
        }
        std::sort(neighbours.begin(), neighbours.end());
        neighbours.erase(std::unique(neighbours.begin(), neighbours.end()), neighbours.end());
        const WalkQuery query = row_query(*to, std::uint32_t(i), scratch.values);
        scratch.scores.resize(neighbours.size());
        loops.score(query, to->codes.data(), stride_, neighbours.data(), std::int64_t(neighbours.size()), scratch.scores.data());
        candidates.clear();
        for (std::size_t n = 0; n < neighbours.size(); ++n) candidates.push_back({scratch.scores[n], neighbours[n]});
        sort_candidates(candidates, std::uint32_t(i));
        if (repair) choose(*to, candidates, most, loops, scratch);
        write_links(to->list(std::uint32_t(i), level), candidates);
      }
    }
  });
  to->count = count;
  return out;
}

Graph::Arrays Graph::arrays() const {
  Arrays out;
  const auto layers = current();
  if (!layers) return out;
  const std::int64_t n = layers->count.load();
  out.centre = layers->centre;
  out.codes.assign(layers->codes.data(), layers->codes.data() + n * stride_);
  out.links.assign(layers->links.data(), layers->links.data() + n * layers->base_width);
  out.levels.assign(layers->levels.data(), layers->levels.data() + n);
  out.nodes.assign(layers->nodes.data(), layers->nodes.data() + n);
  out.entry = n ? std::int64_t(layers->entry.load()) : -1;
  for (std::int64_t row = 0; row < n; ++row)
    for (int level = 1; level <= layers->levels[row]; ++level) {
      const std::uint32_t *list = layers->list(std::uint32_t(row), level);
      out.upper.insert(out.upper.end(), list, list + layers->upper_width);
    }
  // What follows the links of a short list was never written.
  const auto clear = [](std::vector<std::uint32_t> &lists, std::int64_t width) {
    for (std::size_t at = 0; at < lists.size(); at += width) std::fill(lists.begin() + at + 1 + lists[at], lists.begin() + at + width, 0);
  };
  clear(out.links, layers->base_width), clear(out.upper, layers->upper_width);
  return out;
}

void Graph::restore(Arrays arrays) {
  const std::int64_t n = std::int64_t(arrays.levels.size()), base = 1 + 2 * links_, width = 1 + links_;
  if (!n) return;
  std::size_t upper = 0;
  for (const std::uint8_t level : arrays.levels) upper += level;
  const auto fits = [&](const std::vector<std::uint32_t> &lists, std::int64_t words) {
    for (std::size_t at = 0; at < lists.size(); at += words) {
      if (lists[at] >= std::uint32_t(words)) return false;
      for (std::uint32_t i = 1; i <= lists[at]; ++i)
        if (lists[at + i] >= std::uint64_t(n)) return false;
    }
    return true;
  };
  bool nodes_fit = arrays.nodes.empty() || std::int64_t(arrays.nodes.size()) == n;
  for (std::size_t row = 0; nodes_fit && row < arrays.nodes.size(); ++row) {
    const std::uint32_t node = arrays.nodes[row];
    nodes_fit = node <= row && arrays.nodes[node] == node && (node == row || !arrays.levels[row]);
  }
  if (!nodes_fit || std::int64_t(arrays.codes.size()) != n * stride_ || std::int64_t(arrays.links.size()) != n * base ||
      std::int64_t(arrays.centre.size()) != dim_ || arrays.upper.size() != upper * width || arrays.entry < 0 || arrays.entry >= n ||
      !fits(arrays.links, base) || !fits(arrays.upper, width))
    throw std::invalid_argument("the arrays of the graph do not fit together");
  const auto layers = reserve(n, upper);
  layers->centre = std::move(arrays.centre);
  std::memcpy(layers->codes.data(), arrays.codes.data(), arrays.codes.size());
  std::memcpy(layers->links.data(), arrays.links.data(), arrays.links.size() * sizeof(std::uint32_t));
  std::memcpy(layers->upper.data(), arrays.upper.data(), arrays.upper.size() * sizeof(std::uint32_t));
  for (std::int64_t row = 0; row < n; ++row) {
    layers->levels[row] = arrays.levels[row], layers->upper_starts[row] = layers->upper_count;
    layers->upper_count += arrays.levels[row];
    if (arrays.nodes.empty() || arrays.nodes[row] == row) layers->add_node(std::uint32_t(row));
    else layers->add_copy(arrays.nodes[row], std::uint32_t(row));
    const RowHeader header = layers->header(std::uint32_t(row), width_);
    layers->longest = std::max(layers->longest, std::sqrt(2.0 * header.half));
  }
  layers->entry = std::uint32_t(arrays.entry), layers->count = n;
}

} // namespace ridgeline
