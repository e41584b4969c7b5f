// Python values as canonical JSON (RFC 8785), and events as ledger entries.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace ridgeline {

// The message says what is wrong and where: "attributes.n is …". Python gets a ValueError.
struct InvalidValue : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Appends `value`; `where` names it in errors. The GIL is held.
void append_canonical(std::string &out, PyObject *value, const std::string &where);

// Appends `text` as a JSON string.
void append_string(std::string &out, PyObject *text, const std::string &where);

// Appends a finite double as ECMAScript writes it.
void append_number(std::string &out, double value);

} // namespace ridgeline
