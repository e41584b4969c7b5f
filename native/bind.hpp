// The functions that add each folder's names to the module; module.cpp calls them once, at import.
#pragma once

namespace nanobind { class module_; }

namespace ridgeline {

void bind_threads(nanobind::module_ &m);
void bind_memory(nanobind::module_ &m);
void bind_resample(nanobind::module_ &m);
void bind_direct_resample(nanobind::module_ &m);
void bind_launch(nanobind::module_ &m);
void bind_tokenizer(nanobind::module_ &m);
void bind_rows(nanobind::module_ &m);
void bind_encoder(nanobind::module_ &m);
void bind_search(nanobind::module_ &m);
void bind_graph(nanobind::module_ &m);
void bind_rabitq(nanobind::module_ &m);
void bind_ledger(nanobind::module_ &m);
void bind_collective(nanobind::module_ &m);
void bind_recommend(nanobind::module_ &m);
void bind_serve(nanobind::module_ &m);
void bind_video(nanobind::module_ &m);
void bind_audit(nanobind::module_ &m);

} // namespace ridgeline
