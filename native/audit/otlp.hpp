// OTLP logs (opentelemetry-proto: logs.proto, common.proto, resource.proto) as Python values, read field by field.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

namespace ridgeline {

nanobind::list parse_otlp_logs(nanobind::bytes body, std::size_t most);

} // namespace ridgeline
