#include "audit/otlp.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>

#include "released_gil.hpp"
#include "serve/base64.hpp"

namespace nb = nanobind;

namespace ridgeline {
namespace {

constexpr int kDeepest = 20;                    // values nested deeper are refused
constexpr std::int64_t kExact = 1LL << 53;      // larger integers are texts, because JSON has only doubles
constexpr std::size_t kTurn = 1024;             // records after which other threads may run

struct Span {
  const std::uint8_t *at, *end;
  std::size_t size() const { return std::size_t(end - at); }
};

std::invalid_argument malformed() { return std::invalid_argument("the body is no protobuf of OTLP, or is cut off."); }

std::uint64_t read_varint(Span &data) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 70 && data.at < data.end; shift += 7) {
    const std::uint8_t byte = *data.at++;
    value |= std::uint64_t(byte & 0x7f) << shift; // the tenth byte has bits beyond 64, which fall away
    if (byte < 0x80) return value;
  }
  throw malformed();
}

// One field of a message: a number (wire types 0, 1, 5) or bytes (2).
struct Field {
  std::uint64_t number;
  int wire;
  std::uint64_t value;
  Span bytes;
};

bool read_field(Span &data, Field &field) {
  if (data.at == data.end) return false;
  const std::uint64_t tag = read_varint(data);
  field.number = tag >> 3, field.wire = int(tag & 7);
  if (field.wire == 0) {
    field.value = read_varint(data);
    return true;
  }
  std::uint64_t size = 0;
  if (field.wire == 2) size = read_varint(data);
  else if (field.wire == 1) size = 8;
  else if (field.wire == 5) size = 4;
  else throw malformed();
  if (field.number == 0 || size > data.size()) throw malformed();
  field.bytes = {data.at, data.at + size};
  if (field.wire != 2) {
    field.value = 0;
    std::memcpy(&field.value, data.at, size); // little-endian, as all machines we build for
  }
  data.at += size;
  return true;
}

nb::object take(PyObject *object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

nb::object make_text(Span bytes) {
  return take(PyUnicode_DecodeUTF8(reinterpret_cast<const char *>(bytes.at), Py_ssize_t(bytes.size()), "backslashreplace"));
}

nb::object make_hex(Span bytes) {
  static const char *digits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const std::uint8_t *at = bytes.at; at < bytes.end; ++at) out += {digits[*at >> 4], digits[*at & 15]};
  return take(PyUnicode_FromStringAndSize(out.data(), Py_ssize_t(out.size())));
}

nb::object make_base64(Span bytes) {
  std::string out(base64_length(bytes.size()), '\0');
  encode_base64(bytes.at, bytes.size(), out.data());
  return take(PyUnicode_FromStringAndSize(out.data(), Py_ssize_t(out.size())));
}

nb::object make_integer(std::int64_t value) {
  nb::object number = take(PyLong_FromLongLong(value));
  return value > -kExact && value < kExact ? number : take(PyObject_Str(number.ptr()));
}

nb::object make_double(std::uint64_t bits) {
  double value = 0;
  std::memcpy(&value, &bits, sizeof value);
  nb::object number = take(PyFloat_FromDouble(value));
  return std::isfinite(value) ? number : take(PyObject_Str(number.ptr()));
}

// Texts of names: the records of a request have the same ones, so one object serves all.
class NameCache {
public:
  nb::object find(Span bytes) {
    std::uint32_t hash = 2166136261u;
    for (const std::uint8_t *at = bytes.at; at < bytes.end; ++at) hash = (hash ^ *at) * 16777619u;
    Entry &entry = entries_[hash % kEntries];
    if (!entry.text.is_valid() || entry.bytes.size() != bytes.size() || std::memcmp(entry.bytes.at, bytes.at, bytes.size()) != 0)
      entry = {bytes, make_text(bytes)};
    return entry.text;
  }

private:
  static constexpr std::size_t kEntries = 256;
  struct Entry {
    Span bytes{nullptr, nullptr};
    nb::object text;
  };
  Entry entries_[kEntries];
};

class Parser {
public:
  nb::list parse(Span body, std::size_t most) {
    nb::list groups;
    Field field;
    while (count_ <= most && read_field(body, field))
      if (field.number == 1 && field.wire == 2) add_resource_logs(groups, field.bytes, most);
    return groups;
  }

private:
  void add_resource_logs(nb::list &groups, Span data, std::size_t most) {
    nb::object resource = take(PyDict_New());
    Field field;
    for (Span rest = data; read_field(rest, field);) // the resource may come after its logs
      if (field.number == 1 && field.wire == 2) resource = make_resource(field.bytes);
    for (Span rest = data; count_ <= most && read_field(rest, field);)
      if (field.number == 2 && field.wire == 2) add_scope_logs(groups, resource, field.bytes, most);
  }

  nb::object make_resource(Span data) {
    nb::object attributes = take(PyDict_New());
    for (Field field; read_field(data, field);)
      if (field.number == 1 && field.wire == 2) add_pair(attributes.ptr(), field.bytes, 0);
    return attributes;
  }

  void add_scope_logs(nb::list &groups, const nb::object &resource, Span data, std::size_t most) {
    nb::object scope = nb::str("");
    Field field;
    for (Span rest = data; read_field(rest, field);)
      if (field.number == 1 && field.wire == 2) scope = make_scope(field.bytes);
    nb::list records;
    for (Span rest = data; count_ <= most && read_field(rest, field);) {
      if (field.number != 2 || field.wire != 2) continue;
      records.append(make_record(field.bytes));
      if (++count_ % kTurn == 0) ReleasedGil turn;
    }
    if (records.size() > 0) groups.append(nb::make_tuple(resource, scope, records)); // a body may be millions of empty groups
  }

  nb::object make_scope(Span data) {
    nb::object name = nb::str("");
    for (Field field; read_field(data, field);)
      if (field.number == 1 && field.wire == 2) name = make_text(field.bytes);
    return name;
  }

  nb::object make_record(Span data) {
    std::uint64_t time = 0, observed = 0, severity = 0, dropped = 0;
    Span severity_text{data.end, data.end}, trace = severity_text, span = severity_text, name = severity_text;
    nb::object body = nb::none(), attributes = take(PyDict_New());
    for (Field field; read_field(data, field);) {
      switch (field.number << 3 | unsigned(field.wire)) {
      case 1 << 3 | 1: time = field.value; break;
      case 2 << 3 | 0: severity = field.value; break;
      case 3 << 3 | 2: severity_text = field.bytes; break;
      case 5 << 3 | 2: body = make_value(field.bytes, 0); break;
      case 6 << 3 | 2: add_pair(attributes.ptr(), field.bytes, 0); break;
      case 7 << 3 | 0: dropped = field.value; break;
      case 9 << 3 | 2: trace = field.bytes; break;
      case 10 << 3 | 2: span = field.bytes; break;
      case 11 << 3 | 1: observed = field.value; break;
      case 12 << 3 | 2: name = field.bytes; break;
      }
    }
    nb::object items[] = {take(PyLong_FromUnsignedLongLong(time)), take(PyLong_FromUnsignedLongLong(observed)),
                          take(PyLong_FromUnsignedLongLong(severity)), names_.find(severity_text), body, attributes,
                          take(PyLong_FromUnsignedLongLong(dropped)), make_hex(trace), make_hex(span), names_.find(name)};
    nb::object record = take(PyTuple_New(Py_ssize_t(std::size(items))));
    for (std::size_t k = 0; k < std::size(items); ++k) PyTuple_SET_ITEM(record.ptr(), Py_ssize_t(k), items[k].release().ptr());
    return record;
  }

  // Adds a KeyValue; one without a key is left out.
  void add_pair(PyObject *dict, Span data, int depth) {
    Span key{data.end, data.end};
    nb::object value = nb::none();
    for (Field field; read_field(data, field);) {
      if (field.wire != 2) continue;
      if (field.number == 1) key = field.bytes;
      else if (field.number == 2) value = make_value(field.bytes, depth);
    }
    if (key.size() > 0 && PyDict_SetItem(dict, names_.find(key).ptr(), value.ptr()) < 0) throw nb::python_error();
  }

  // An AnyValue; the last of its fields counts.
  nb::object make_value(Span data, int depth) {
    if (depth > kDeepest) throw std::invalid_argument("a value of the body is nested too deep.");
    nb::object value = nb::none();
    for (Field field; read_field(data, field);) {
      switch (field.number << 3 | unsigned(field.wire)) {
      case 1 << 3 | 2: value = make_text(field.bytes); break;
      case 2 << 3 | 0: value = nb::borrow(field.value != 0 ? Py_True : Py_False); break;
      case 3 << 3 | 0: value = make_integer(std::int64_t(field.value)); break;
      case 4 << 3 | 1: value = make_double(field.value); break;
      case 5 << 3 | 2: value = make_list(field.bytes, depth + 1); break;
      case 6 << 3 | 2: value = make_map(field.bytes, depth + 1); break;
      case 7 << 3 | 2: value = make_base64(field.bytes); break;
      }
    }
    return value;
  }

  nb::object make_list(Span data, int depth) {
    nb::list items;
    for (Field field; read_field(data, field);)
      if (field.number == 1 && field.wire == 2) items.append(make_value(field.bytes, depth));
    return items;
  }

  nb::object make_map(Span data, int depth) {
    nb::object items = take(PyDict_New());
    for (Field field; read_field(data, field);)
      if (field.number == 1 && field.wire == 2) add_pair(items.ptr(), field.bytes, depth);
    return items;
  }

  std::size_t count_ = 0;
  NameCache names_;
};

} // namespace

nb::list parse_otlp_logs(nb::bytes body, std::size_t most) {
  const auto *start = reinterpret_cast<const std::uint8_t *>(body.c_str());
  return Parser().parse({start, start + body.size()}, most);
}

} // namespace ridgeline
