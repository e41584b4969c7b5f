#include "audit/word_search.hpp"

#include <cstring>
#include <stdexcept>
#include <utility>

namespace nb = nanobind;

namespace ridgeline {
namespace {

constexpr int kDeepest = 64;
constexpr std::uint32_t kOdd = 1u << 31; // the text has letters that become ASCII as small letters
constexpr Py_ssize_t kMostNames = 4096;

std::uint8_t to_small(std::uint8_t letter) { return letter >= 'A' && letter <= 'Z' ? std::uint8_t(letter + 32) : letter; }

struct SmallLetters {
  std::uint8_t of[256];
  SmallLetters() {
    for (int k = 0; k < 256; ++k) of[k] = to_small(std::uint8_t(k));
  }
};
const SmallLetters kSmall;

} // namespace

WordSearch::WordSearch(const std::vector<std::tuple<std::string, std::uint32_t, bool>> &words,
                       std::vector<std::uint32_t> combinations, nb::callable hides)
    : combinations_(std::move(combinations)), hides_(std::move(hides)), groups_(1), group_(1 << 16) {
  combinations_.push_back(kOdd);
  // KELVIN SIGN and LATIN CAPITAL LETTER I WITH DOT ABOVE: Python's `lower` makes an ASCII letter of them.
  const std::vector<std::tuple<std::string, std::uint32_t, bool>> odd{{"\xe2\x84\xaa", kOdd, true}, {"\xc4\xb0", kOdd, true}};
  for (const auto *list : {&words, &odd})
    for (const auto &[text, bit, exact] : *list) {
      if (text.empty()) {
        always_ |= bit;
        continue;
      }
      std::string small = text;
      for (char &letter : small) letter = char(to_small(std::uint8_t(letter)));
      const auto first = std::uint8_t(small[0]);
      if (small.size() == 1) {
        single_[first] |= bit;
        if (first >= 'a' && first <= 'z') single_[first - 32] |= bit;
        continue;
      }
      std::uint8_t &group = group_[std::size_t(first) << 8 | std::uint8_t(small[1])];
      if (group == 0) {
        if (groups_.size() > 255) throw std::invalid_argument("there are too many words");
        group = std::uint8_t(groups_.size());
        groups_.emplace_back();
      }
      groups_[group].push_back({exact ? text : small, bit, exact});
    }
}

bool WordSearch::matches(nb::dict event) {
  std::uint32_t matched = always_; // not a member: `hides_` may let another thread run
  for (const char *name : {"actor", "subject", "attributes"}) {
    PyObject *value = PyDict_GetItemString(event.ptr(), name);
    if (value != nullptr && !look_at(value, 0, matched)) return true;
  }
  for (const std::uint32_t combination : combinations_)
    if ((matched & combination) == combination) return true;
  return false;
}

bool WordSearch::look_at(PyObject *value, int depth, std::uint32_t &matched) {
  if (PyUnicode_Check(value)) {
    Py_ssize_t size = 0;
    const char *data = PyUnicode_AsUTF8AndSize(value, &size);
    if (data == nullptr) {
      PyErr_Clear();
      return false;
    }
    search(data, std::size_t(size), matched);
    return true;
  }
  if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value)) return true;
  if (depth > kDeepest) return false;
  if (PyDict_Check(value)) {
    if (has_hidden_name(value)) return false;
    PyObject *key = nullptr, *item = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);)
      if (!look_at(item, depth + 1, matched)) return false;
    return true;
  }
  if (!PyList_Check(value) && !PyTuple_Check(value)) return false;
  for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(value); ++k)
    if (!look_at(PySequence_Fast_GET_ITEM(value, k), depth + 1, matched)) return false;
  return true;
}

bool WordSearch::has_hidden_name(PyObject *dict) {
  PyObject *key = nullptr, *item = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &item);) {
    if (!PyUnicode_Check(key)) return true;
    PyObject *known = PyDict_GetItemWithError(known_names_.ptr(), key);
    if (known == nullptr) {
      if (PyErr_Occurred()) throw nb::python_error();
      nb::object name = nb::borrow(key);
      const bool hidden = nb::cast<bool>(hides_(name)); // it does not change `dict`
      if (PyDict_Size(known_names_.ptr()) >= kMostNames) known_names_.clear();
      known_names_[name] = hidden;
      if (hidden) return true;
    } else if (known == Py_True) {
      return true;
    }
  }
  return false;
}

int WordSearch::traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const WordSearch *search = nb::inst_ptr<WordSearch>(self);
  Py_VISIT(search->hides_.ptr());
  Py_VISIT(search->known_names_.ptr());
  return 0;
}

int WordSearch::clear(PyObject *self) {
  WordSearch *search = nb::inst_ptr<WordSearch>(self);
  search->hides_.reset();
  return 0;
}

void WordSearch::search(const char *data, std::size_t size, std::uint32_t &matched) const {
  if (size == 0) return;
  const auto *bytes = reinterpret_cast<const std::uint8_t *>(data);
  matched |= single_[bytes[0]];
  std::size_t before = kSmall.of[bytes[0]];
  for (std::size_t k = 1; k < size; ++k) {
    matched |= single_[bytes[k]];
    const std::size_t letter = kSmall.of[bytes[k]];
    const std::uint8_t group = group_[before << 8 | letter];
    before = letter;
    if (group == 0) continue;
    for (const Word &word : groups_[group]) {
      const std::size_t length = word.text.size(), start = k - 1;
      if (length > size - start || (matched & word.bit) == word.bit) continue;
      std::size_t same = 0;
      if (word.exact) same = std::memcmp(data + start, word.text.data(), length) == 0 ? length : 0;
      else
        while (same < length && char(kSmall.of[bytes[start + same]]) == word.text[same]) ++same;
      if (same == length) matched |= word.bit;
    }
  }
}

} // namespace ridgeline
