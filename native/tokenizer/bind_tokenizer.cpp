// Python class of tokenizer/: it reads strings in place and returns tokens without a copy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "bind.hpp"
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

nb::tuple encode(WordPiece &self, nb::object texts, Offsets offsets, std::int64_t max_tokens, int threads,
                 const std::string &isa) {
  if (!PyList_Check(texts.ptr()) && !PyTuple_Check(texts.ptr())) throw nb::type_error("texts must be a list or a tuple");
  const Isa set = parse_isa(isa);
  const auto frame = std::int64_t(self.options.before.size() + self.options.after.size());
  if (max_tokens < 0) max_tokens = std::numeric_limits<std::int64_t>::max();
  if (max_tokens < frame) throw std::invalid_argument("max_tokens leaves no space for the special tokens");
  const TextList list(texts);
  if (offsets.shape(0) != list.texts.size() + 1 && list.invalid_text < 0) throw std::invalid_argument("offsets must be [texts + 1]");
  WordPiece::Result result{nullptr, list.invalid_text};
  if (list.invalid_text < 0) {
    if (list.is_long()) {
      nb::gil_scoped_release release;
      result = self.encode(list.texts, offsets.data(), max_tokens, threads, set);
    } else {
      result = self.encode(list.texts, offsets.data(), max_tokens, 1, set);
    }
  }
  if (result.invalid_text >= 0) return nb::make_tuple(nb::none(), result.invalid_text);
  nb::capsule owner(result.tokens, [](void *p) noexcept { std::free(p); });
  return nb::make_tuple(Tokens(result.tokens, {std::size_t(offsets.data()[list.texts.size()])}, owner), -1);
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
      .def("encode", encode, "texts"_a, "offsets"_a.noconvert(), "max_tokens"_a, "threads"_a, "isa"_a = "",
           "Numbers of the tokens of all texts, int32 [offsets[-1]], and -1; `offsets` int64 [texts + 1] is filled. Or None "
           "and the first text that is not a str or has a lone surrogate. max_tokens -1: no limit.")
      .def_prop_ro("size", [](const WordPiece &self) { return self.vocabulary.size(); }, "Tokens in the vocabulary.");
}

} // namespace ridgeline
