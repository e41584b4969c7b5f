#include "tokenizer/subword.hpp"

#include <algorithm>
#include <cstring>
#include <queue>
#include <stdexcept>
#include <utility>

#include "tokenizer/split.hpp"

namespace ridgeline {
namespace {

constexpr std::string_view kMark = "\xe2\x96\x81"; // "▁"
constexpr std::int64_t kPart = 16 << 10;           // characters: a longer text is encoded in parts, so that a limit ends it
constexpr std::size_t kFewSymbols = 32;            // up to here the best pair is searched in a plain loop
constexpr std::size_t kLongWord = 4096;            // bytes: a longer word is given out in parts, so that a limit ends it
constexpr std::size_t kMaxReused = 1 << 20;          // values of a buffer that is kept for the next text
constexpr std::uint32_t kNoRank = 0xffffffff;
constexpr double kUnknownPenalty = 10;

std::uint64_t mix(std::uint64_t x) {
  x *= 0x9e3779b97f4a7c15;
  return x ^ x >> 29;
}

std::vector<std::string> texts_of(const std::vector<AddedToken> &tokens) {
  std::vector<std::string> texts;
  for (const AddedToken &one : tokens) texts.push_back(one.text);
  return texts;
}

template <class C> bool has_surrogates(const C *s, std::int64_t size) {
  bool has_surrogate = false;
  for (std::int64_t k = 0; k < size; ++k) has_surrogate |= (s[k] & ~C(0x7ff)) == 0xd800;
  return has_surrogate;
}

bool is_ascii(const std::uint8_t *s, std::size_t size) {
  std::uint8_t all = 0;
  for (std::size_t k = 0; k < size; ++k) all |= s[k];
  return all < 0x80;
}

template <class C> bool is_letter(C c) { return (std::uint32_t(c) | 0x20) - 'a' < 26; }

// The first place from `from` on where a word ends and a space follows, or the end.
template <class C> std::int64_t find_cut(const C *s, std::int64_t size, std::int64_t from) {
  for (std::int64_t k = from; k < size; ++k)
    if (s[k] == ' ' && is_letter(s[k - 1])) return k;
  return size;
}

} // namespace

// The words that were encoded last, by hash.
struct Subword::Worker {
  static constexpr int kBytes = 24, kPieces = 8, kBits = 13;
  struct Recent {
    char word[kBytes];
    std::uint8_t size = 0, count = 0;
    std::int32_t tokens[kPieces];
  };
  struct Node { // the best way to a position of a word
    double score;
    std::int32_t begin, token; // begin -1: none yet
  };

  Worker() : recent(std::size_t(1) << kBits) {}
  void push(std::int32_t token) {
    if (used == tokens.size()) tokens.resize(2 * used + 256);
    tokens[used++] = token;
  }

  // One long text shall not keep its memory.
  void trim() {
    for (std::string *one : {&text, &normal, &scratch, &words, &unknown})
      if (one->capacity() > kMaxReused) std::string().swap(*one);
    if (nodes.capacity() > kMaxReused) std::vector<Node>().swap(nodes);
    if (path.capacity() > kMaxReused) std::vector<std::pair<std::int32_t, std::int32_t>>().swap(path);
    if (symbols.capacity() > kMaxReused) std::vector<std::int32_t>().swap(symbols);
  }

  std::vector<std::int32_t> tokens;
  std::size_t used = 0;
  std::vector<Recent> recent;
  std::string text, normal, scratch, words, unknown;
  std::vector<Node> nodes;
  std::vector<std::pair<std::int32_t, std::int32_t>> path;
  std::vector<std::int32_t> symbols;
};

AddedTokens::AddedTokens(std::vector<AddedToken> added) : tokens(std::move(added)), trie(texts_of(tokens)) {
  for (const AddedToken &one : tokens) {
    if (one.text.empty()) throw std::invalid_argument("an added token is empty");
    if (&tokens[std::size_t(trie.find(one.text.data(), one.text.size()))] != &one)
      throw std::invalid_argument("two added tokens are equal");
    begins[std::uint8_t(one.text[0])] = true;
  }
}

const AddedToken *AddedTokens::find(std::string_view text, std::size_t at, std::size_t &begin) const {
  if (tokens.empty()) return nullptr;
  for (; at < text.size(); ++at) {
    if (!begins[std::uint8_t(text[at])]) continue;
    std::uint32_t base = trie.root();
    std::int32_t longest = -1;
    for (std::size_t k = at; k < text.size(); ++k) {
      const Trie::Node node = trie.data()[base + std::uint8_t(text[k])];
      if (!node.is(std::uint8_t(text[k]))) break;
      base = node.base;
      if (node.token() >= 0) longest = node.token();
    }
    if (longest < 0) continue;
    begin = at;
    return &tokens[std::size_t(longest)];
  }
  return nullptr;
}

Subword::Subword(SubwordOptions given, std::unique_ptr<BytePairs> byte_pairs, std::unique_ptr<Unigram> pieces,
                 std::unique_ptr<LongestPieces> longest_pieces)
    : options(std::move(given)), pairs(std::move(byte_pairs)), unigram(std::move(pieces)),
      longest(std::move(longest_pieces)), normalizer(options.normalizer),
      added(options.added), normalized_added([&] {
        std::vector<AddedToken> tokens = options.normalized_added;
        std::string scratch;
        for (AddedToken &one : tokens) normalizer.apply(one.text, scratch, false);
        return tokens;
      }()),
      trie(options.tokens) {
  if (bool(pairs) + bool(unigram) + bool(longest) != 1) throw std::invalid_argument("give one model");
  if (unigram) {
    if (unigram->scores.size() != options.tokens.size()) throw std::invalid_argument("every token needs a score");
    unknown_score = *std::min_element(unigram->scores.begin(), unigram->scores.end()) - kUnknownPenalty;
  } else if (pairs) {
    const std::size_t count = pairs->left.size();
    if (pairs->right.size() != count || pairs->merged.size() != count) throw std::invalid_argument("merges must be of one length");
    int bits = 4;
    while ((std::size_t(1) << bits) < 2 * count) ++bits;
    merge_shift = 64 - bits;
    merges.assign((std::size_t(1) << bits) + count + 1, Merge{0, 0, -1}); // a search never wraps around
    for (std::size_t rank = 0; rank < count; ++rank) {
      const std::uint64_t pair = std::uint64_t(pairs->left[rank]) << 32 | std::uint32_t(pairs->right[rank]);
      std::size_t k = mix(pair) >> merge_shift;
      while (merges[k].token >= 0 && merges[k].pair != pair) ++k;
      merges[k] = {pair, std::uint32_t(rank), pairs->merged[rank]}; // the last of equal pairs counts
    }
  }
  cuts = check_cuts();
}

Subword::~Subword() = default;

// A long text may be cut between a letter and a space if neither added tokens nor the normalizer see both.
bool Subword::check_cuts() const {
  const auto spans_cut = [](const std::string &text) { return find_cut(text.data(), std::int64_t(text.size()), 1) < std::int64_t(text.size()); };
  for (const auto *tokens : {&added, &normalized_added})
    for (const AddedToken &one : tokens->tokens)
      if (spans_cut(one.text) || (one.rstrip && is_letter(one.text.back()))) return false;
  for (const NormalizerStep &step : options.normalizer)
    if (!step.from.empty() && spans_cut(step.from)) return false;
  std::string scratch;
  for (char c = 'A'; c <= 'z'; ++c) {
    if (!is_letter(c)) continue;
    std::string text = std::string(1, c) + " " + c;
    normalizer.apply(text, scratch, false);
    const bool spaced = text.size() == 3 && text[1] == ' ';
    const bool marked = text.size() == 5 && std::string_view(text).substr(1, 3) == kMark && options.split == Split::marks;
    if (!(spaced || marked) || !is_letter(text[0]) || !is_letter(text.back())) return false;
  }
  return true;
}

// Encodes one text, or a part of it.
class Subword::Scan {
public:
  Scan(const Subword &tokenizer, Worker &worker, std::size_t limit) : tokenizer(tokenizer), worker(worker), limit(limit) {}

  // `continued`: the text continues another.
  void run(std::string_view text, bool continued) {
    split_added(tokenizer.added, text, [&](std::string_view part) {
      const bool first = continued && part.data() == text.data();
      if (tokenizer.normalizer.empty()) return split_normalized(part);
      worker.normal.assign(part);
      tokenizer.normalizer.apply(worker.normal, worker.scratch, first);
      split_normalized(worker.normal);
    });
  }

  bool full() const { return worker.used >= limit; }

private:
  // Calls `work` for the texts between added tokens.
  template <class Work> void split_added(const AddedTokens &added, std::string_view text, const Work &work) {
    std::size_t done = 0, at = 0, begin = 0;
    while (!full()) {
      const AddedToken *match = added.find(text, at, begin);
      if (!match) break;
      std::size_t end = at = begin + match->text.size();
      if (match->lstrip) begin = std::max(done, strip_left_of(text, begin));
      if (match->rstrip) end = strip_right_of(text, end);
      if (done < begin) work(text.substr(done, begin - done));
      if (full()) return;
      worker.push(match->token);
      done = end;
      at = std::max(at, done);
    }
    if (!full() && done < text.size()) work(text.substr(done));
  }

  static std::size_t strip_left_of(std::string_view text, std::size_t at) {
    while (at > 0) {
      std::size_t begin = at - 1;
      while (begin > 0 && (std::uint8_t(text[begin]) & 0xc0) == 0x80) --begin;
      std::size_t next = begin;
      if (!Unicode::get().is_space(decode(text.data(), next))) break;
      at = begin;
    }
    return at;
  }
  static std::size_t strip_right_of(std::string_view text, std::size_t at) {
    for (std::size_t next = at; at < text.size() && Unicode::get().is_space(decode(text.data(), next)); at = next) {
    }
    return at;
  }

  void split_normalized(std::string_view text) {
    split_added(tokenizer.normalized_added, text, [&](std::string_view part) {
      if (!part.empty()) split_words(part);
    });
  }

  void word(std::string_view text) { tokenizer.encode_word(worker, text, limit); }

  void split_words(std::string_view text) {
    static const WordSplitter splitter;
    const Split split = tokenizer.options.split;
    if (tokenizer.options.space_first && text[0] != ' ') {
      worker.words.assign(1, ' ').append(text);
      text = worker.words;
    }
    switch (split) {
    case Split::gpt2:
    case Split::tiktoken1:
    case Split::tiktoken3: {
      const int digits = split == Split::tiktoken1 ? 1 : 3;
      for (std::size_t at = 0; at < text.size() && !full();) {
        const std::size_t end = split == Split::gpt2 ? splitter.find_gpt2_end(text, at) : splitter.find_tiktoken_end(text, at, digits);
        word(text.substr(at, end - at));
        at = end;
      }
      return;
    }
    case Split::bert: return split_bert(text);
    case Split::marks: return split_marks(text, true);
    case Split::metaspace:
    case Split::metaspace_plain: return split_metaspace(text, split == Split::metaspace);
    case Split::metaspace_words:
      for (std::size_t at = 0; at < text.size() && !full();) {
        std::size_t begin = strip_right_of(text, at), end = begin;
        for (std::size_t next = begin; end < text.size() && !Unicode::get().is_space(decode(text.data(), next)); end = next) {
        }
        if (begin < end) split_metaspace(text.substr(begin, end - begin), true);
        at = end;
      }
    }
  }

  void split_bert(std::string_view text) {
    const Unicode &unicode = Unicode::get();
    std::size_t begin = 0, at = 0;
    const auto put = [&](std::size_t from, std::size_t to) {
      if (from < to && !full()) word(text.substr(from, to - from));
    };
    while (at < text.size() && !full()) {
      const std::size_t space_begin = at;
      const std::uint32_t c = decode(text.data(), at);
      const bool space = unicode.is_space(c);
      if (!space && !unicode.is_alone(c)) continue;
      put(begin, space_begin);
      if (!space) put(space_begin, at);
      begin = at;
    }
    put(begin, at);
  }

  void split_metaspace(std::string_view text, bool prepend) {
    std::string &words = worker.words;
    words.clear();
    if (prepend && text[0] != ' ' && text.substr(0, kMark.size()) != kMark) words += kMark;
    for (const char c : text) {
      if (c == ' ') words += kMark;
      else words += c;
    }
    split_marks(words, false);
  }

  // `runs`: marks that follow each other belong together.
  void split_marks(std::string_view text, bool runs) {
    const auto follows_mark = [&](std::size_t at) {
      return at >= kMark.size() && text.substr(at - kMark.size(), kMark.size()) == kMark;
    };
    std::size_t begin = 0;
    while (begin < text.size() && !full()) {
      std::size_t end = begin;
      do {
        const std::size_t from = end + (text.substr(end, kMark.size()) == kMark ? kMark.size() : 1);
        end = std::min(text.find(kMark, from), text.size());
      } while (runs && end < text.size() && follows_mark(end));
      word(text.substr(begin, end - begin));
      begin = end;
    }
  }

  const Subword &tokenizer;
  Worker &worker;
  const std::size_t limit; // of worker.used
};

EncodedTexts Subword::encode(const std::vector<Text> &texts, std::int64_t *offsets, std::int64_t limit, int threads) {
  return encode_texts(
      workers, [] { return std::make_unique<Worker>(); },
      [&](Worker &worker, const Text &text) { return encode_text(worker, text, limit); }, texts, offsets, threads);
}

bool Subword::encode_text(Worker &worker, const Text &text, std::int64_t limit) const {
  if (text.width == 2 && has_surrogates(static_cast<const std::uint16_t *>(text.data), text.size)) return false;
  if (text.width == 4 && has_surrogates(static_cast<const std::uint32_t *>(text.data), text.size)) return false;
  for (const std::int32_t token : options.before) worker.push(token);
  const auto frame = std::int64_t(options.before.size() + options.after.size());
  const auto left = std::size_t(std::max<std::int64_t>(0, limit - frame));
  const std::size_t stop = left > SIZE_MAX - worker.used ? SIZE_MAX : worker.used + left;
  Scan scan(*this, worker, stop);
  const auto run = [&](const auto *s) {
    for (std::int64_t at = 0; at < text.size && !scan.full();) {
      const std::int64_t end = cuts && text.size - at > 2 * kPart ? find_cut(s, text.size, at + kPart) : text.size;
      const auto count = std::size_t(end - at);
      if (sizeof *s == 1 && is_ascii(reinterpret_cast<const std::uint8_t *>(s + at), count)) {
        scan.run({reinterpret_cast<const char *>(s + at), count}, at > 0);
      } else {
        worker.text.clear();
        for (std::int64_t k = at; k < end; ++k) append_utf8(worker.text, s[k]);
        scan.run(worker.text, at > 0);
      }
      at = end;
    }
  };
  switch (text.width) {
  case 1: run(static_cast<const std::uint8_t *>(text.data)); break;
  case 2: run(static_cast<const std::uint16_t *>(text.data)); break;
  default: run(static_cast<const std::uint32_t *>(text.data));
  }
  worker.used = std::min(worker.used, stop);
  for (const std::int32_t token : options.after) worker.push(token);
  worker.trim();
  return true;
}

void Subword::encode_word(Worker &worker, std::string_view word, std::size_t limit) const {
  const auto work = [&] {
    if (pairs) merge_pairs(worker, word);
    else if (unigram) find_best_pieces(worker, word, limit);
    else find_longest_pieces(worker, word);
  };
  if (word.size() > Worker::kBytes) return work();
  std::uint64_t key[3] = {};
  std::memcpy(key, word.data(), word.size());
  const std::uint64_t hash = mix(mix(mix(key[0] ^ word.size()) ^ key[1]) ^ key[2]);
  Worker::Recent &recent = worker.recent[hash >> (64 - Worker::kBits)];
  if (recent.size == word.size() && !std::memcmp(recent.word, key, Worker::kBytes)) {
    for (int k = 0; k < recent.count; ++k) worker.push(recent.tokens[k]);
    return;
  }
  const std::size_t begin = worker.used;
  work();
  const std::size_t count = worker.used - begin;
  if (count > Worker::kPieces) return;
  std::memcpy(recent.word, key, Worker::kBytes);
  recent.size = std::uint8_t(word.size()), recent.count = std::uint8_t(count);
  std::copy_n(worker.tokens.data() + begin, count, recent.tokens);
}

const Subword::Merge *Subword::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = std::uint64_t(left) << 32 | std::uint32_t(right);
  for (std::size_t k = mix(pair) >> merge_shift;; ++k) {
    if (merges[k].token < 0) return nullptr;
    if (merges[k].pair == pair) return &merges[k];
  }
}

void Subword::merge_pairs(Worker &worker, std::string_view word) const {
  if (pairs->whole_words) {
    const std::int32_t token = trie.find(word.data(), word.size());
    if (token >= 0) return worker.push(token);
  }
  std::vector<std::int32_t> &symbols = worker.symbols;
  symbols.clear();
  if (pairs->of_characters) {
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t bytes = character_bytes(word[at]);
      const std::int32_t token = trie.find(word.data() + at, bytes);
      if (token >= 0) symbols.push_back(token);
      else
        for (std::size_t k = 0; k < bytes; ++k) symbols.push_back(pairs->bytes[std::uint8_t(word[at + k])]);
      at += bytes;
    }
  } else {
    for (const char c : word) symbols.push_back(pairs->bytes[std::uint8_t(c)]);
  }
  if (symbols.size() > kFewSymbols) return merge_many(worker, symbols);

  std::size_t count = symbols.size();
  std::uint32_t ranks[kFewSymbols];
  std::int32_t merged[kFewSymbols];
  const auto look_up = [&](std::size_t k) {
    const Merge *merge = k + 1 < count ? find_merge(symbols[k], symbols[k + 1]) : nullptr;
    ranks[k] = merge ? merge->rank : kNoRank;
    merged[k] = merge ? merge->token : -1;
  };
  for (std::size_t k = 0; k < count; ++k) look_up(k);
  while (count > 1) {
    const auto best = std::size_t(std::min_element(ranks, ranks + count) - ranks);
    if (ranks[best] == kNoRank) break;
    symbols[best] = merged[best];
    --count;
    for (std::size_t k = best + 1; k < count; ++k) symbols[k] = symbols[k + 1], ranks[k] = ranks[k + 1], merged[k] = merged[k + 1];
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  for (std::size_t k = 0; k < count; ++k) worker.push(symbols[k]);
}

// The same for a long word: pairs wait in a queue, the smallest rank first, then the first place.
void Subword::merge_many(Worker &worker, std::vector<std::int32_t> &symbols) const {
  struct Waiting {
    std::uint32_t rank, at;
    std::int32_t left, right;
    bool operator<(const Waiting &other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto count = std::uint32_t(symbols.size());
  std::vector<std::uint32_t> before(count), after(count);
  std::vector<Waiting> initial;
  const auto wait = [&](std::uint32_t at, const auto &put) {
    const std::uint32_t next = after[at];
    if (next >= count) return;
    const Merge *merge = find_merge(symbols[at], symbols[next]);
    if (merge) put(Waiting{merge->rank, at, symbols[at], symbols[next]});
  };
  for (std::uint32_t k = 0; k < count; ++k) before[k] = k - 1, after[k] = k + 1;
  for (std::uint32_t k = 0; k + 1 < count; ++k) wait(k, [&](const Waiting &one) { initial.push_back(one); });
  std::priority_queue<Waiting> queue(std::less<Waiting>(), std::move(initial));
  while (!queue.empty()) {
    const Waiting best = queue.top();
    queue.pop();
    const std::uint32_t at = best.at, next = symbols[at] < 0 ? count : after[at];
    if (next >= count || symbols[at] != best.left || symbols[next] != best.right) continue; // merged meanwhile
    symbols[at] = find_merge(best.left, best.right)->token;
    symbols[next] = -1;
    after[at] = after[next];
    if (after[at] < count) before[after[at]] = at;
    const auto put = [&](const Waiting &one) { queue.push(one); };
    if (at > 0 && before[at] < count) wait(before[at], put);
    wait(at, put);
  }
  for (const std::int32_t token : symbols)
    if (token >= 0) worker.push(token);
}

// Viterbi over the positions of a word.
void Subword::find_best_pieces(Worker &worker, std::string_view word, std::size_t limit) const {
  using Node = Worker::Node;
  const Trie::Node *const all = trie.data();
  std::vector<Node> &nodes = worker.nodes;
  auto &path = worker.path;
  worker.unknown.clear();
  std::size_t from = 0; // pieces before it are given out
  const auto give_out = [&](std::size_t end) { // the best pieces up to a position
    path.clear();
    for (std::size_t at = end; at > from; at = from + std::size_t(nodes[at - from].begin))
      path.emplace_back(std::int32_t(from) + nodes[at - from].begin, nodes[at - from].token);
    for (std::size_t k = path.size(); k-- > 0;) {
      const std::size_t begin = std::size_t(path[k].first), stop = k ? std::size_t(path[k - 1].first) : end;
      if (path[k].second == unigram->unknown) { // unknown characters that follow each other are one piece
        worker.unknown.append(word.substr(begin, stop - begin));
        continue;
      }
      if (!worker.unknown.empty()) put_piece(worker, worker.unknown), worker.unknown.clear();
      worker.push(path[k].second);
    }
    from = end;
  };
  nodes.assign(std::min(word.size(), 2 * kLongWord) + 1, Node{0, -1, -1});
  std::size_t reach = 0; // the end of the longest piece so far
  for (std::size_t at = 0; at < word.size();) {
    if (at == reach && at - from >= kLongWord) { // no piece spans this position: what is before it stays
      const double score = nodes[at - from].score;
      give_out(at);
      if (worker.used >= limit) return;
      nodes.assign(std::min(word.size() - at, 2 * kLongWord) + 1, Node{0, -1, -1});
      nodes[0].score = score;
    }
    const double score = nodes[at - from].score;
    const std::size_t bytes = character_bytes(word[at]);
    bool single = false;
    const auto offer = [&](std::size_t end, double candidate, std::int32_t token) {
      if (end - from >= nodes.size()) nodes.resize(std::max(2 * nodes.size(), end - from + 1), Node{0, -1, -1});
      Node &node = nodes[end - from];
      if (node.begin < 0 || candidate > node.score) node = {candidate, std::int32_t(at - from), token};
      reach = std::max(reach, end);
    };
    std::uint32_t base = trie.root();
    for (std::size_t k = at; k < word.size(); ++k) {
      const auto byte = std::uint8_t(word[k]);
      const Trie::Node node = all[base + byte];
      if (!node.is(byte)) break;
      base = node.base;
      const std::int32_t token = node.token();
      if (token < 0) continue;
      offer(k + 1, unigram->scores[std::size_t(token)] + score, token);
      single |= k + 1 - at == bytes;
    }
    if (!single) offer(at + bytes, unknown_score + score, unigram->unknown);
    at += bytes;
  }
  give_out(word.size());
  if (!worker.unknown.empty()) put_piece(worker, worker.unknown);
}

void Subword::find_longest_pieces(Worker &worker, std::string_view word) const {
  const auto characters = std::count_if(word.begin(), word.end(), [](char c) { return (std::uint8_t(c) & 0xc0) != 0x80; });
  if (characters > longest->max_word) return worker.push(longest->vocabulary.unknown());
  std::vector<std::int32_t> &pieces = worker.symbols;
  pieces.resize(word.size());
  const int count = longest->vocabulary.pieces(word.data(), int(word.size()), pieces.data());
  for (int k = 0; k < count; ++k) worker.push(pieces[std::size_t(k)]);
}

void Subword::put_piece(Worker &worker, std::string_view piece) const {
  const std::int32_t token = trie.find(piece.data(), piece.size());
  if (token >= 0) return worker.push(token);
  if (!unigram->has_bytes) return worker.push(unigram->unknown);
  for (const char c : piece) worker.push(unigram->bytes[std::uint8_t(c)]);
}

} // namespace ridgeline
