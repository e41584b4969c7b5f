// Python functions of ledger/: events to entries, entries to leaf hashes, hashes to a root.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>

#include "bind.hpp"
#include "ledger/canonical_json.hpp"
#include "ledger/sha256.hpp"
#include "released_gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

constexpr std::size_t kLargestEntry = 65535, kLongestName = 1024, kLongestSubject = 4096;
constexpr std::size_t kReleaseGil = 16384; // bytes: less is hashed before another thread wakes up
constexpr const char *kReserved = "ridgeline.ledger.";

nb::bytes make_bytes(const std::string &text) { return nb::bytes(text.data(), text.size()); }

struct Names {
  nb::object time = intern("time"), source = intern("source"), actor = intern("actor"), action = intern("action"),
             subject = intern("subject"), attributes = intern("attributes");
  static nb::object intern(const char *name) { return nb::steal(PyUnicode_InternFromString(name)); }
};

class Encoder {
public:
  Encoder(std::string now, bool internal) : now(std::move(now)), internal(internal) {}

  // Writes one event as canonical JSON to `entry`.
  void encode(PyObject *event) {
    if (!PyDict_Check(event)) throw InvalidValue(std::string("is a ") + Py_TYPE(event)->tp_name + ", not an object of names and values");
    Py_ssize_t known_names = 0;
    auto find = [&](const nb::object &name) {
      PyObject *value = PyDict_GetItemWithError(event, name.ptr());
      if (!value && PyErr_Occurred()) throw nb::python_error();
      known_names += value != nullptr;
      return value;
    };
    PyObject *time = find(names.time), *source = find(names.source), *actor = find(names.actor);
    PyObject *action = find(names.action), *subject = find(names.subject), *attributes = find(names.attributes);
    if (known_names != PyDict_Size(event)) refuse_unknown(event);
    front.clear(), middle.clear(), back.clear(), attribute_json.clear();
    front += "{\"action\":";
    check_action(text(front, action, "action", kLongestName, true));
    front += ",\"actor\":";
    text(front, actor, "actor", kLongestName, false);
    front += ",\"attributes\":";
    if (attributes && attributes != Py_None) {
      if (!PyDict_Check(attributes)) throw InvalidValue("attributes is not an object");
      append_canonical(attribute_json, attributes, "attributes");
    } else {
      attribute_json += "{}";
    }
    middle += ",\"source\":";
    text(middle, source, "source", kLongestName, true);
    back += ",\"subject\":";
    text(back, subject, "subject", kLongestSubject, false);
    back += ",\"time\":\"";
    append_time(time);
    back += "\"}";
    entry = front + attribute_json + middle + back;
  }

  void replace_attributes(const std::string &sha256) {
    entry = front + "{}" + middle + ",\"stored\":{\"bytes\":" + std::to_string(entry.size()) + ",\"sha256\":\"" + sha256 + "\"}" + back;
  }

  std::string entry;

private:
  [[noreturn]] void refuse_unknown(PyObject *event) {
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(event, &at, &key, &value);) {
      const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
      PyErr_Clear();
      const std::string word = name ? name : "?";
      if (word != "time" && word != "source" && word != "actor" && word != "action" && word != "subject" && word != "attributes")
        throw InvalidValue("has an unknown name '" + word.substr(0, 60) + "'; there are: time, source, actor, action, subject, attributes");
    }
    throw InvalidValue("has names that are no plain strings");
  }

  std::string text(std::string &out, PyObject *value, const char *name, std::size_t longest, bool needed) {
    if (!value || value == Py_None) {
      if (needed) throw InvalidValue(std::string("has no ") + name + "; give it one");
      out += "\"\"";
      return "";
    }
    if (!PyUnicode_Check(value)) throw InvalidValue(std::string(name) + " is a " + Py_TYPE(value)->tp_name + ", not a string");
    append_string(out, value, name);
    Py_ssize_t size = 0;
    const char *data = PyUnicode_AsUTF8AndSize(value, &size);
    if (needed && size == 0) throw InvalidValue(std::string("has an empty ") + name + "; give it one");
    if (std::size_t(size) > longest)
      throw InvalidValue(std::string(name) + " has " + std::to_string(size) + " bytes, at most " + std::to_string(longest) +
                    " are allowed; put long values into attributes");
    return std::string(data, std::size_t(size));
  }

  void check_action(const std::string &action) {
    bool start = true;
    for (char c : action) {
      const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
      if (!word && (c != '.' || start)) throw bad_action(action);
      start = c == '.';
    }
    if (start) throw bad_action(action);
    if (!internal && action.rfind(kReserved, 0) == 0)
      throw InvalidValue("action '" + action + "' is the ledger's own ('" + kReserved + "…' is reserved for it); choose another");
  }

  static InvalidValue bad_action(const std::string &action) {
    return InvalidValue("action '" + action.substr(0, 60) + "' is not words joined by dots, like network.ovs.bridge.create");
  }

  void append_time(PyObject *time) {
    if (!time || time == Py_None) {
      back += now;
      return;
    }
    nb::object number;
    if (PyUnicode_Check(time)) {
      Py_ssize_t size = 0;
      const char *data = PyUnicode_AsUTF8AndSize(time, &size);
      PyErr_Clear();
      const bool digits = data && size > 0 && size <= 19 && std::strspn(data, "0123456789") == std::size_t(size) && (data[0] != '0' || size == 1);
      if (!digits) throw InvalidValue("time is not nanoseconds since 1970, as an integer or its digits");
      number = nb::steal(PyLong_FromUnicodeObject(time, 10));
      if (!number.is_valid()) throw nb::python_error();
      time = number.ptr();
    }
    if (!PyLong_Check(time) || PyBool_Check(time))
      throw InvalidValue(std::string("time is a ") + Py_TYPE(time)->tp_name + ", not an integer of nanoseconds since 1970");
    int over = 0;
    const long long ns = PyLong_AsLongLongAndOverflow(time, &over);
    if (over || ns < 0) throw InvalidValue("time is outside 0 to 2^63 − 1 nanoseconds since 1970");
    back += std::to_string(ns);
  }

  Names names;
  std::string now, front, attribute_json, middle, back;
  bool internal;
};

std::string hex(const std::uint8_t *digest) {
  static const char *letters = "0123456789abcdef";
  std::string out;
  for (int k = 0; k < 32; ++k) out += {letters[digest[k] >> 4], letters[digest[k] & 15]};
  return out;
}

// Calls each(index, data, length) for the entries of a bundle; throws if an entry runs past the end.
template <class Each> std::size_t for_each_entry(const char *data, std::size_t size, Each each) {
  std::size_t at = 0, count = 0;
  while (at < size) {
    const auto *p = reinterpret_cast<const unsigned char *>(data) + at;
    if (size - at < 2 || size - at - 2 < std::size_t(p[0] << 8 | p[1]))
      throw std::invalid_argument("entry " + std::to_string(count) + " of the bundle runs past its end");
    const std::size_t length = std::size_t(p[0] << 8 | p[1]);
    each(count, data + at + 2, length);
    at += 2 + length;
    ++count;
  }
  return count;
}

std::string hash_entries(const char *data, std::size_t size, Compress compress) {
  std::string hashes;
  hashes.reserve(size / 4);
  for_each_entry(data, size, [&](std::size_t, const char *entry, std::size_t length) {
    std::uint8_t digest[32];
    leaf_hash(compress, entry, length, digest);
    hashes.append(reinterpret_cast<const char *>(digest), 32);
  });
  return hashes;
}

nb::bytes bundle_hashes(nb::bytes bundle, const std::string &engine) {
  const Compress compress = sha256_engine(engine);
  if (bundle.size() < kReleaseGil) return make_bytes(hash_entries(bundle.c_str(), bundle.size(), compress));
  std::string hashes;
  {
    ReleasedGil release;
    hashes = hash_entries(bundle.c_str(), bundle.size(), compress);
  }
  return make_bytes(hashes);
}

nb::bytes merkle_root(nb::bytes hashes, const std::string &engine) {
  const Compress compress = sha256_engine(engine);
  if (hashes.size() == 0 || hashes.size() % 32) throw std::invalid_argument("hashes must be one or more of 32 bytes each");
  std::vector<std::uint8_t> scratch(hashes.size());
  std::memcpy(scratch.data(), hashes.c_str(), hashes.size());
  std::uint8_t root[32];
  if (hashes.size() < kReleaseGil) {
    tree_hash(compress, scratch.data(), scratch.size() / 32, root);
  } else {
    ReleasedGil release;
    tree_hash(compress, scratch.data(), scratch.size() / 32, root);
  }
  return nb::bytes(reinterpret_cast<const char *>(root), 32);
}

nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> entry_ends(nb::bytes bundle) {
  auto *ends = new std::vector<std::int64_t>;
  nb::capsule owner(ends, [](void *p) noexcept { delete static_cast<std::vector<std::int64_t> *>(p); });
  const char *start = bundle.c_str();
  for_each_entry(start, bundle.size(), [&](std::size_t, const char *entry, std::size_t length) { ends->push_back(entry + length - start); });
  return nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(ends->data(), {ends->size()}, owner);
}

nb::tuple encode_events(nb::object events, std::int64_t now, bool internal) {
  if (!PyList_Check(events.ptr()) && !PyTuple_Check(events.ptr())) throw nb::type_error("events must be a list or a tuple");
  const Compress compress = sha256_engine("");
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(events.ptr());
  Encoder encoder(std::to_string(now), internal);
  std::string bundle;
  bundle.reserve(std::size_t(count) * 224);
  nb::list large;
  for (Py_ssize_t k = 0; k < count; ++k) {
    try {
      encoder.encode(PySequence_Fast_ITEMS(events.ptr())[k]);
    } catch (const InvalidValue &error) {
      throw InvalidValue("event " + std::to_string(k) + " " + error.what());
    }
    if (encoder.entry.size() > kLargestEntry) {
      std::uint8_t digest[32];
      sha256(compress, encoder.entry.data(), encoder.entry.size(), digest);
      const std::string name = hex(digest);
      large.append(nb::make_tuple(k, name, make_bytes(encoder.entry)));
      encoder.replace_attributes(name);
    }
    const std::size_t size = encoder.entry.size();
    bundle += char(size >> 8);
    bundle += char(size & 255);
    bundle += encoder.entry;
  }
  std::string hashes;
  if (bundle.size() < kReleaseGil) {
    hashes = hash_entries(bundle.data(), bundle.size(), compress);
  } else {
    ReleasedGil release;
    hashes = hash_entries(bundle.data(), bundle.size(), compress);
  }
  return nb::make_tuple(make_bytes(bundle), make_bytes(hashes), large);
}

} // namespace

void bind_ledger(nb::module_ &m) {
  m.def("sha256_engines", sha256_engines, "Ways to compute SHA-256 on this CPU, weakest first.");
  m.def("canonical_json", [](nb::object value) {
    std::string out;
    append_canonical(out, value.ptr(), "the value");
    return make_bytes(out);
  }, "value"_a.none(), "A Python value as canonical JSON (RFC 8785); ValueError says what JSON cannot hold.");
  m.def("encode_events", encode_events, "events"_a, "now"_a, "internal"_a = false,
        "Events as a bundle of entries (each after its length, big-endian uint16), their leaf hashes [32 each], and a list "
        "of (event, sha256, bytes) for events too large for an entry. `now`: the time, in ns, of events without one. `internal`: "
        "allow the actions that are reserved for the ledger. ValueError says which event is wrong.");
  m.def("bundle_hashes", bundle_hashes, "bundle"_a, "engine"_a = "", "RFC 6962 leaf hashes of a bundle's entries, 32 bytes each.");
  m.def("entry_ends", entry_ends, "bundle"_a, "Where each entry of a bundle ends, int64 [entries].");
  m.def("merkle_root", merkle_root, "hashes"_a, "engine"_a = "", "RFC 6962 tree hash over hashes of 32 bytes each, one or more.");
}

} // namespace ridgeline
