// Finds words in the texts of events in one pass: most events have none, and then no regular expression is needed.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace ridgeline {

class WordSearch {
public:
  // words: (text of ASCII, its bit, whether its case counts); combinations: an event matches if it has all bits of one.
  WordSearch(const std::vector<std::tuple<std::string, std::uint32_t, bool>> &words, std::vector<std::uint32_t> combinations,
             nanobind::callable hides);

  bool matches(nanobind::dict event);

  // For Python's garbage collector: `hides` may refer to what holds this object.
  static int traverse(PyObject *self, visitproc visit, void *arg);
  static int clear(PyObject *self);

private:
  struct Word {
    std::string text; // small letters, unless its case counts
    std::uint32_t bit;
    bool exact;
  };

  // They add the bits of the words to `matched`; False: the event may match in a way that is not searched here.
  bool look_at(PyObject *value, int depth, std::uint32_t &matched);
  bool has_hidden_name(PyObject *dict);
  void search(const char *data, std::size_t size, std::uint32_t &matched) const;

  std::vector<std::uint32_t> combinations_;
  nanobind::callable hides_;
  nanobind::dict known_names_; // name → whether its value is hidden
  std::uint32_t always_ = 0;                            // bits of the words without a letter
  std::array<std::uint32_t, 256> single_{};             // bits of the words of one letter
  std::vector<std::vector<Word>> groups_;               // words of the same first two letters; the first group is empty
  std::vector<std::uint8_t> group_;                     // by two small letters
};

} // namespace ridgeline
