// Python classes of tokenizer/: they read strings in place and return tokens without a copy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "bind.hpp"
#include "released_gil.hpp"
#include "tokenizer/subword.hpp"
#include "tokenizer/wordpiece.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Tokens = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;
using Offsets = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::int64_t kReleaseGil = 4096; // characters: a short text is done before another thread wakes up
constexpr std::size_t kAhead = 8;              // strings are anywhere in memory: their headers are prefetched

// The strings of a list or tuple, with references while the GIL is released: another thread may change the list.
class TextList {
public:
  explicit TextList(nb::handle sequence) {
    PyObject *const *items = PySequence_Fast_ITEMS(sequence.ptr());
    const auto count = std::size_t(PySequence_Fast_GET_SIZE(sequence.ptr()));
    texts.reserve(count);
    for (std::size_t k = 0; k < count; ++k) {
      if (k + kAhead < count) __builtin_prefetch(items[k + kAhead]);
      PyObject *item = items[k];
      if (!PyUnicode_Check(item)) {
        invalid_text = std::int64_t(k);
        return;
      }
#if PY_VERSION_HEX < 0x030c0000
      if (PyUnicode_READY(item) < 0) throw nb::python_error();
#endif
      texts.push_back({PyUnicode_DATA(item), std::int64_t(PyUnicode_GET_LENGTH(item)), int(PyUnicode_KIND(item))});
      characters += texts.back().size;
    }
    if (characters < kReleaseGil) return;
    list.assign(items, items + count);
    for (PyObject *item : list) Py_INCREF(item);
  }
  ~TextList() {
    for (PyObject *item : list) Py_DECREF(item);
  }
  TextList(const TextList &) = delete;
  TextList &operator=(const TextList &) = delete;
  bool is_long() const { return !list.empty(); }

  std::vector<Text> texts;
  std::int64_t invalid_text = -1, characters = 0;

private:
  std::vector<PyObject *> list;
};

std::vector<Added> added_tokens(const nb::list &pairs) {
  std::vector<Added> added;
  for (nb::handle one : pairs) {
    auto [text, token] = nb::cast<std::pair<nb::str, std::int32_t>>(one);
    Added added_token{{}, token};
    for (Py_ssize_t k = 0; k < PyUnicode_GET_LENGTH(text.ptr()); ++k) added_token.text += char32_t(PyUnicode_READ_CHAR(text.ptr(), k));
    const char32_t c = added_token.text.empty() ? U' ' : added_token.text[0];
    if (!((c >= 33 && c < 48) || (c >= 58 && c < 65) || (c >= 91 && c < 97) || (c >= 123 && c < 127)))
      throw std::invalid_argument("an added token must begin with ASCII punctuation");
    added.push_back(std::move(added_token));
  }
  return added;
}

// `encode_list(texts, offsets, limit, threads)` encodes with or without the GIL.
template <class EncodeList>
nb::tuple encode_with(const std::vector<std::int32_t> &before, const std::vector<std::int32_t> &after, nb::object texts,
                      Offsets offsets, std::int64_t max_tokens, int threads, const EncodeList &encode_list) {
  if (!PyList_Check(texts.ptr()) && !PyTuple_Check(texts.ptr())) throw nb::type_error("texts must be a list or a tuple");
  const auto frame = std::int64_t(before.size() + after.size());
  if (max_tokens < 0) max_tokens = std::numeric_limits<std::int64_t>::max();
  if (max_tokens < frame) throw std::invalid_argument("max_tokens leaves no space for the special tokens");
  const TextList list(texts);
  if (offsets.shape(0) != list.texts.size() + 1 && list.invalid_text < 0) throw std::invalid_argument("offsets must be [texts + 1]");
  EncodedTexts result{nullptr, list.invalid_text};
  if (list.invalid_text < 0) {
    if (list.is_long()) {
      ReleasedGil release;
      result = encode_list(list.texts, offsets.data(), max_tokens, threads);
    } else {
      result = encode_list(list.texts, offsets.data(), max_tokens, 1);
    }
  }
  if (result.invalid_text >= 0) return nb::make_tuple(nb::none(), result.invalid_text);
  nb::capsule owner(result.tokens, [](void *p) noexcept { std::free(p); });
  return nb::make_tuple(Tokens(result.tokens, {std::size_t(offsets.data()[list.texts.size()])}, owner), -1);
}

nb::tuple encode_wordpiece(WordPiece &self, nb::object texts, Offsets offsets, std::int64_t max_tokens, int threads,
                           const std::string &isa) {
  const Isa set = parse_isa(isa);
  return encode_with(self.options.before, self.options.after, texts, offsets, max_tokens, threads,
                     [&](const auto &list, std::int64_t *starts, std::int64_t limit, int count) {
                       return self.encode(list, starts, limit, count, set);
                     });
}

nb::tuple encode_subword(Subword &self, nb::object texts, Offsets offsets, std::int64_t max_tokens, int threads) {
  return encode_with(self.options.before, self.options.after, texts, offsets, max_tokens, threads,
                     [&](const auto &list, std::int64_t *starts, std::int64_t limit, int count) {
                       return self.encode(list, starts, limit, count);
                     });
}

std::string bytes_of(nb::handle value) {
  const auto bytes = nb::cast<nb::bytes>(value);
  return {bytes.c_str(), bytes.size()};
}

std::vector<AddedToken> subword_added(const nb::list &rows) {
  std::vector<AddedToken> added;
  for (nb::handle row : rows) {
    const auto one = nb::cast<nb::tuple>(row);
    added.push_back({bytes_of(one[0]), nb::cast<std::int32_t>(one[1]), nb::cast<bool>(one[2]), nb::cast<bool>(one[3])});
  }
  return added;
}

NormalizerStep read_step(nb::handle row) {
  using Kind = NormalizerStep::Kind;
  static const std::vector<std::pair<std::string, Kind>> kinds{
      {"clean_text", Kind::clean_text}, {"space_chinese", Kind::space_chinese}, {"strip_marks", Kind::strip_marks}, {"nmt", Kind::nmt}, {"nfc", Kind::nfc}, {"nfd", Kind::nfd}, {"nfkc", Kind::nfkc}, {"nfkd", Kind::nfkd},
      {"lowercase", Kind::lowercase}, {"strip_accents", Kind::strip_accents}, {"strip_left", Kind::strip_left},
      {"strip_right", Kind::strip_right}, {"replace", Kind::replace}, {"replace_spaces", Kind::replace_spaces},
      {"charsmap", Kind::charsmap}};
  const auto step = nb::cast<nb::tuple>(row);
  const auto name = nb::cast<std::string>(step[0]);
  for (const auto &[word, kind] : kinds) {
    if (word != name) continue;
    NormalizerStep read{kind, bytes_of(step[1]), bytes_of(step[2]), {}};
    if (kind == Kind::replace && read.from.empty()) throw std::invalid_argument("a replaced text is empty");
    if (kind == Kind::charsmap) {
      read.charsmap.units.resize(read.from.size() / sizeof(std::uint32_t));
      std::memcpy(read.charsmap.units.data(), read.from.data(), read.charsmap.units.size() * sizeof(std::uint32_t));
      read.charsmap.texts = std::move(read.to);
      read.from.clear(), read.to.clear();
    }
    return read;
  }
  throw std::invalid_argument("unknown step of a normalizer: " + name);
}

Split read_split(const std::string &name) {
  static const std::vector<std::pair<std::string, Split>> kinds{
      {"metaspace", Split::metaspace}, {"metaspace_plain", Split::metaspace_plain}, {"metaspace_words", Split::metaspace_words},
      {"marks", Split::marks}, {"bert", Split::bert}, {"gpt2", Split::gpt2}, {"tiktoken1", Split::tiktoken1}, {"tiktoken3", Split::tiktoken3}};
  for (const auto &[word, split] : kinds)
    if (word == name) return split;
  throw std::invalid_argument("unknown way to split: " + name);
}

std::array<std::int32_t, 256> read_bytes(const std::vector<std::int32_t> &numbers) {
  if (numbers.size() != 256) throw std::invalid_argument("bytes must be 256 numbers");
  std::array<std::int32_t, 256> bytes;
  std::copy(numbers.begin(), numbers.end(), bytes.begin());
  return bytes;
}

using Numbers = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Scores = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::int32_t> read_numbers(const Numbers &numbers, std::size_t tokens) {
  for (std::size_t k = 0; k < numbers.shape(0); ++k)
    if (numbers.data()[k] < 0 || std::size_t(numbers.data()[k]) >= tokens) throw std::invalid_argument("a token is not in the vocabulary");
  return {numbers.data(), numbers.data() + numbers.shape(0)};
}

SubwordOptions read_subword(const nb::list &tokens, const nb::list &normalizer, const nb::list &added,
                            const nb::list &normalized_added, const std::string &split, bool space_first,
                            const std::vector<std::int32_t> &before, const std::vector<std::int32_t> &after) {
  SubwordOptions options{{}, {}, subword_added(added), subword_added(normalized_added), read_split(split), space_first, before, after};
  options.tokens.reserve(tokens.size());
  for (nb::handle token : tokens) options.tokens.push_back(bytes_of(token));
  for (nb::handle step : normalizer) options.normalizer.push_back(read_step(step));
  return options;
}

} // namespace

void bind_tokenizer(nb::module_ &m) {
  nb::class_<WordPiece>(m, "WordPiece", "BERT's tokenizer: see ridgeline.embed.tokenizer.")
      .def("__init__",
           [](WordPiece *self, const std::vector<std::string> &tokens, std::int32_t unknown,
              const std::vector<std::int32_t> &before, const std::vector<std::int32_t> &after, const nb::list &added,
              bool clean_text, bool handle_chinese_chars, bool strip_accents, bool lowercase, int max_word) {
             if (unknown < 0 || unknown >= std::int32_t(tokens.size()))
               throw std::invalid_argument("the unknown token is not in the vocabulary");
             if (max_word < 1 || max_word > 100'000) throw std::invalid_argument("max_word must be 1 to 100000");
             new (self) WordPiece(tokens, {{clean_text, handle_chinese_chars, strip_accents, lowercase},
                                           max_word, unknown, before, after, added_tokens(added)});
           },
           "tokens"_a, "unknown"_a, "before"_a, "after"_a, "added"_a, "clean_text"_a = true,
           "handle_chinese_chars"_a = true, "strip_accents"_a = true, "lowercase"_a = true, "max_word"_a = 100,
           "tokens in the order of their numbers; unknown: a number; before, after: numbers put around every text; "
           "added: (text, number), matched in the raw text first.")
      .def("encode", encode_wordpiece, "texts"_a, "offsets"_a.noconvert(), "max_tokens"_a, "threads"_a, "isa"_a = "",
           "Numbers of the tokens of all texts, int32 [offsets[-1]], and -1; `offsets` int64 [texts + 1] is filled. Or None "
           "and the first text that is not a str or has a lone surrogate. max_tokens -1: no limit.")
      .def_prop_ro("size", [](const WordPiece &self) { return self.vocabulary.size(); }, "Tokens in the vocabulary.");

  nb::class_<Subword>(m, "Subword", "Unigram, byte-pair and WordPiece tokenizers: see ridgeline.embed.subword.")
      .def_static(
          "unigram",
          [](const nb::list &tokens, Scores scores, std::int32_t unknown, const std::vector<std::int32_t> &bytes,
             const nb::list &normalizer, const nb::list &added, const nb::list &normalized_added, const std::string &split,
             const std::vector<std::int32_t> &before, const std::vector<std::int32_t> &after) {
            auto model = std::make_unique<Unigram>();
            if (scores.shape(0) != tokens.size() || tokens.size() == 0) throw std::invalid_argument("every token needs a score");
            if (unknown < 0 || std::size_t(unknown) >= tokens.size())
              throw std::invalid_argument("the unknown token is not in the vocabulary");
            model->scores.assign(scores.data(), scores.data() + scores.shape(0));
            model->unknown = unknown;
            model->has_bytes = !bytes.empty();
            if (model->has_bytes) model->bytes = read_bytes(bytes);
            return std::make_unique<Subword>(read_subword(tokens, normalizer, added, normalized_added, split, false, before, after),
                                             nullptr, std::move(model), nullptr);
          },
          "tokens"_a, "scores"_a, "unknown"_a, "bytes"_a, "normalizer"_a, "added"_a, "normalized_added"_a, "split"_a,
          "before"_a, "after"_a, "tokens in the order of their numbers, as UTF-8; bytes: the tokens of 256 bytes, or none.")
      .def_static(
          "byte_pairs",
          [](const nb::list &tokens, Numbers left, Numbers right, Numbers merged, const std::vector<std::int32_t> &bytes,
             bool of_characters, bool whole_words, const nb::list &normalizer, const nb::list &added,
             const nb::list &normalized_added, const std::string &split, bool space_first,
             const std::vector<std::int32_t> &before, const std::vector<std::int32_t> &after) {
            auto model = std::make_unique<BytePairs>();
            model->left = read_numbers(left, tokens.size());
            model->right = read_numbers(right, tokens.size());
            model->merged = read_numbers(merged, tokens.size());
            model->bytes = read_bytes(bytes);
            model->of_characters = of_characters, model->whole_words = whole_words;
            return std::make_unique<Subword>(read_subword(tokens, normalizer, added, normalized_added, split, space_first, before, after),
                                             std::move(model), nullptr, nullptr);
          },
          "tokens"_a, "left"_a, "right"_a, "merged"_a, "bytes"_a, "of_characters"_a, "whole_words"_a, "normalizer"_a,
          "added"_a, "normalized_added"_a, "split"_a, "space_first"_a, "before"_a, "after"_a,
          "left, right, merged: tokens of each merge by rank; bytes: the tokens of 256 bytes.")
      .def_static(
          "longest_pieces",
          [](const nb::list &tokens, std::int32_t unknown, int max_word, const nb::list &normalizer, const nb::list &added,
             const nb::list &normalized_added, const std::string &split, const std::vector<std::int32_t> &before,
             const std::vector<std::int32_t> &after) {
            if (unknown < 0 || std::size_t(unknown) >= tokens.size())
              throw std::invalid_argument("the unknown token is not in the vocabulary");
            auto options = read_subword(tokens, normalizer, added, normalized_added, split, false, before, after);
            auto model = std::make_unique<LongestPieces>(options.tokens, unknown, max_word);
            options.tokens.clear();
            return std::make_unique<Subword>(std::move(options), nullptr, nullptr, std::move(model));
          },
          "tokens"_a, "unknown"_a, "max_word"_a, "normalizer"_a, "added"_a, "normalized_added"_a, "split"_a, "before"_a,
          "after"_a, "WordPiece: tokens in the order of their numbers, as UTF-8.")
      .def("encode", encode_subword, "texts"_a, "offsets"_a.noconvert(), "max_tokens"_a, "threads"_a,
           "As WordPiece.encode.");
}

} // namespace ridgeline
