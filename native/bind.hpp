// The faces of native/ that do not fit into module.cpp: one function per part, called once at import.
#pragma once

namespace nanobind { class module_; }

namespace ridgeline {
void bind_resample(nanobind::module_ &m);
void bind_habit(nanobind::module_ &m);
void bind_door(nanobind::module_ &m);
void bind_launch(nanobind::module_ &m);
void bind_wordpiece(nanobind::module_ &m);
void bind_rows(nanobind::module_ &m);
void bind_half(nanobind::module_ &m);
void bind_sieve(nanobind::module_ &m);
void bind_ledger(nanobind::module_ &m);
void bind_collective(nanobind::module_ &m);
}
