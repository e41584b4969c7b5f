#include "ledger/canonical_json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace nb = nanobind;

namespace ridgeline {
namespace {

constexpr int kMaxDepth = 64;
constexpr long long kMaxExact = (1LL << 53) - 1; // JSON readers use doubles: larger integers would change

struct Utf8 {
  const char *data;
  std::size_t size;
};

Utf8 utf8(PyObject *text, const std::string &where) {
  Py_ssize_t size = 0;
  const char *data = PyUnicode_AsUTF8AndSize(text, &size);
  if (!data) {
    PyErr_Clear();
    throw InvalidValue(where + " holds a lone surrogate, which is no Unicode text; replace it");
  }
  return {data, std::size_t(size)};
}

void quote(std::string &out, Utf8 text) {
  static const char *hex = "0123456789abcdef";
  out += '"';
  std::size_t from = 0;
  for (std::size_t k = 0; k < text.size; ++k) {
    const auto c = static_cast<unsigned char>(text.data[k]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text.data + from, k - from);
    from = k + 1;
    out += '\\';
    switch (c) {
    case '"': out += '"'; break;
    case '\\': out += '\\'; break;
    case '\b': out += 'b'; break;
    case '\t': out += 't'; break;
    case '\n': out += 'n'; break;
    case '\f': out += 'f'; break;
    case '\r': out += 'r'; break;
    default: out += {'u', '0', '0', hex[c >> 4], hex[c & 15]};
    }
  }
  out.append(text.data + from, text.size - from);
  out += '"';
}

// Names are sorted by UTF-16 units. UTF-8 sorts the same, but for U+E000–U+FFFF (lead bytes 0xEE, 0xEF), which UTF-16
// puts after all that needs surrogates (lead bytes from 0xF0).
int utf16_order(unsigned char lead) { return lead == 0xee || lead == 0xef ? lead + 0x10 : lead; }

bool sorts_before(const Utf8 &a, const Utf8 &b) {
  const std::size_t shared = std::min(a.size, b.size);
  for (std::size_t k = 0; k < shared; ++k)
    if (a.data[k] != b.data[k])
      return utf16_order(static_cast<unsigned char>(a.data[k])) < utf16_order(static_cast<unsigned char>(b.data[k]));
  return a.size < b.size;
}

std::string short_text(PyObject *value) {
  PyObject *text_object = PyObject_Str(value);
  const char *text = text_object ? PyUnicode_AsUTF8(text_object) : nullptr;
  std::string out = text ? text : "?";
  PyErr_Clear();
  Py_XDECREF(text_object);
  return out.size() > 40 ? out.substr(0, 40) + "…" : out;
}

void append_value(std::string &out, PyObject *value, const std::string &where, int depth);

void append_object(std::string &out, PyObject *dict, const std::string &where, int depth) {
  struct Member {
    Utf8 name;
    PyObject *value;
  };
  std::vector<Member> members;
  members.reserve(std::size_t(PyDict_Size(dict)));
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
    if (!PyUnicode_Check(key)) throw InvalidValue(where + " has a name that is no string (" + short_text(key) + ")");
    members.push_back({utf8(key, "a name in " + where), value});
  }
  std::sort(members.begin(), members.end(), [](const Member &a, const Member &b) { return sorts_before(a.name, b.name); });
  out += '{';
  bool first = true;
  for (const Member &member : members) {
    if (!first) out += ',';
    first = false;
    quote(out, member.name);
    out += ':';
    // The path is needed only for values that can hold an invalid value inside.
    const bool plain = PyUnicode_Check(member.value) || PyBool_Check(member.value) || member.value == Py_None;
    append_value(out, member.value, plain ? where : where + "." + std::string(member.name.data, member.name.size), depth);
  }
  out += '}';
}

void append_list(std::string &out, PyObject *list, const std::string &where, int depth) {
  PyObject *const *items = PySequence_Fast_ITEMS(list);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(list);
  out += '[';
  for (Py_ssize_t k = 0; k < count; ++k) {
    if (k) out += ',';
    append_value(out, items[k], where + "[" + std::to_string(k) + "]", depth);
  }
  out += ']';
}

void append_value(std::string &out, PyObject *value, const std::string &where, int depth) {
  if (PyUnicode_Check(value)) {
    quote(out, utf8(value, where));
  } else if (value == Py_None) {
    out += "null";
  } else if (PyBool_Check(value)) {
    out += value == Py_True ? "true" : "false";
  } else if (PyLong_Check(value)) {
    int over = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &over);
    if (over || number > kMaxExact || number < -kMaxExact)
      throw InvalidValue(where + " is an integer beyond ±(2^53 − 1), which JSON readers round; write it as a string");
    out += std::to_string(number);
  } else if (PyFloat_Check(value)) {
    const double number = PyFloat_AS_DOUBLE(value);
    if (!std::isfinite(number)) throw InvalidValue(where + " is " + short_text(value) + ", which JSON cannot hold; use null or a string");
    append_number(out, number);
  } else if (PyDict_Check(value) || PyList_Check(value) || PyTuple_Check(value)) {
    if (depth >= kMaxDepth) throw InvalidValue(where.substr(0, 80) + "… is nested more than " + std::to_string(kMaxDepth) + " deep");
    if (PyDict_Check(value)) append_object(out, value, where, depth + 1);
    else append_list(out, value, where, depth + 1);
  } else {
    throw InvalidValue(where + " is a " + Py_TYPE(value)->tp_name + ", which is no JSON value");
  }
}

} // namespace

void append_canonical(std::string &out, PyObject *value, const std::string &where) { append_value(out, value, where, 0); }

void append_string(std::string &out, PyObject *text, const std::string &where) { quote(out, utf8(text, where)); }

void append_number(std::string &out, double value) {
  if (value == 0) { // minus zero too
    out += '0';
    return;
  }
  char text[32];
  const char *end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  const char *from = text;
  if (*from == '-') out += *from++;
  const char *e = std::find(from, end, 'e');
  std::string digits(1, *from);
  if (from + 1 < e) digits.append(from + 2, e);
  const int point = std::atoi(std::string(e + 1, end).c_str()) + 1; // digits before the decimal point
  const int count = int(digits.size());
  if (count <= point && point <= 21) {
    out += digits;
    out.append(std::size_t(point - count), '0');
  } else if (0 < point && point <= 21) {
    out += digits.substr(0, std::size_t(point)) + "." + digits.substr(std::size_t(point));
  } else if (-6 < point && point <= 0) {
    out += "0.";
    out.append(std::size_t(-point), '0');
    out += digits;
  } else {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    out += point > 0 ? "e+" : "e-";
    out += std::to_string(std::abs(point - 1));
  }
}

} // namespace ridgeline
