// The Python function of resample/ for all options: arrays of any stride are taken as they are.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "bind.hpp"
#include "released_gil.hpp"
#include "resample/resample.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using In = nb::ndarray<nb::ro, nb::device::cpu>;
using Out = nb::ndarray<nb::device::cpu>;
using Counts = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Group = std::tuple<std::int64_t, std::int64_t, std::string>;

template <class T> T parse_name(const std::map<std::string, T> &names, const std::string &word, const char *what) {
  const auto entry = names.find(word);
  if (entry == names.end()) throw std::invalid_argument(std::string("unknown ") + what + " '" + word + "'");
  return entry->second;
}

const std::map<std::string, ValueType> kValueTypes{
    {"float16", ValueType::f16}, {"bfloat16", ValueType::bf16}, {"float32", ValueType::f32}, {"float64", ValueType::f64}};
const std::map<std::string, Kind> kKinds{{"linear", Kind::linear}, {"previous", Kind::previous}, {"nearest", Kind::nearest},
                                         {"cubic", Kind::cubic},   {"slerp", Kind::slerp},       {"angle", Kind::angle}};
const std::map<std::string, Outside> kOutside{
    {"clamp", Outside::clamp}, {"nan", Outside::nan}, {"extrapolate", Outside::extrapolate}};

void set_times(ResampleJob &job, const In &times) {
  job.times = times.data();
  if (times.dtype() == nb::dtype<double>()) job.time_type = TimeType::f64;
  else if (times.dtype() == nb::dtype<std::int64_t>()) job.time_type = TimeType::i64;
  else if (times.dtype() == nb::dtype<float>()) job.time_type = TimeType::f32;
  else throw std::invalid_argument("times must be float64, int64 or float32");
  if (times.ndim() != 2) throw std::invalid_argument("times must be [batch, stamps]");
  for (int k = 0; k < 2; ++k) job.time_stride[k] = times.stride(k);
}

const std::int64_t *check_length(const std::optional<Counts> &counts, std::int64_t length, const char *what) {
  if (!counts) return nullptr;
  if (std::int64_t(counts->shape(0)) != length) throw std::invalid_argument(std::string(what) + " has the wrong length");
  return counts->data();
}

} // namespace

void bind_resample(nb::module_ &m) {
  m.def("resample",
        [](In values, In times, In at, Out out, std::optional<Mask> mask, std::optional<Counts> lengths,
           std::optional<Counts> at_lengths, std::optional<Counts> offsets, const std::vector<Group> &channels,
           const std::string &outside, std::optional<double> gap_float, std::optional<std::int64_t> gap_int,
           std::optional<In> scale, std::optional<In> shift, const std::string &value_type, bool out_is_wide, int threads,
           bool check, const std::string &isa) {
          ResampleJob job{};
          if (values.ndim() != 3 || at.ndim() != 2 || out.ndim() != 3)
            throw std::invalid_argument("values and out must be [batch, stamps, channels], at [batch, targets]");
          set_times(job, times);
          if (at.dtype() != times.dtype()) throw std::invalid_argument("at must have the type of times");
          job.values = values.data();
          job.value_type = parse_name(kValueTypes, value_type, "value type");
          job.at = at.data();
          job.out = out.data();
          for (int k = 0; k < 3; ++k) job.value_stride[k] = values.stride(k), job.out_stride[k] = out.stride(k);
          for (int k = 0; k < 2; ++k) job.at_stride[k] = at.stride(k);
          job.out_is_wide = out_is_wide;
          job.batch = out.shape(0), job.targets = out.shape(1), job.channels = out.shape(2);
          job.stamps = values.shape(1);
          if (std::int64_t(values.shape(2)) != job.channels || std::int64_t(at.shape(0)) != job.batch ||
              std::int64_t(at.shape(1)) != job.targets || std::int64_t(times.shape(1)) != job.stamps)
            throw std::invalid_argument("the shapes of values, times, at and out do not match");
          if (!offsets && (std::int64_t(values.shape(0)) != job.batch || std::int64_t(times.shape(0)) != job.batch))
            throw std::invalid_argument("values, times and at must have one batch size");
          if (mask && (std::int64_t(mask->shape(0)) != job.batch || std::int64_t(mask->shape(1)) != job.targets))
            throw std::invalid_argument("mask must be [batch, targets]");
          job.mask = mask ? mask->data() : nullptr;
          job.lengths = check_length(lengths, job.batch, "lengths");
          job.at_lengths = check_length(at_lengths, job.batch, "at_lengths");
          job.offsets = check_length(offsets, job.batch + 1, "offsets");
          if (offsets) job.value_stride[0] = job.time_stride[0] = 0;
          for (const auto &[start, stop, kind] : channels) job.groups.push_back({start, stop, parse_name(kKinds, kind, "kind")});
          job.outside = parse_name(kOutside, outside, "policy for targets outside");
          job.has_gap = gap_float || gap_int;
          job.gap_float = gap_float.value_or(0), job.gap_int = gap_int.value_or(0);
          job.scale = scale ? scale->data() : nullptr, job.shift = shift ? shift->data() : nullptr;
          Isa set = parse_isa(isa);
          ReleasedGil release;
          return resample(job, set, threads, check);
        },
        "values"_a, "times"_a, "at"_a, "out"_a, "mask"_a.none(), "lengths"_a.none(), "at_lengths"_a.none(),
        "offsets"_a.none(), "channels"_a, "outside"_a, "gap_float"_a.none(), "gap_int"_a.none(), "scale"_a.none(),
        "shift"_a.none(), "value_type"_a, "out_is_wide"_a, "threads"_a, "check"_a = false,
        "isa"_a = "",
        "Interpolate values [B, S, D] at times [B, S] to the targets at [B, T], into out [B, T, D]; see ridgeline.resample. "
        "With `check` it returns the first trajectory whose stamps are unsorted, or -1.");

  m.def("first_unsorted",
        [](In times, std::optional<Counts> lengths, std::optional<Counts> offsets) {
          ResampleJob job{};
          set_times(job, times);
          job.batch = offsets ? std::int64_t(offsets->shape(0)) - 1 : std::int64_t(times.shape(0));
          job.stamps = times.shape(1);
          job.lengths = check_length(lengths, job.batch, "lengths");
          job.offsets = offsets ? offsets->data() : nullptr;
          if (offsets) job.time_stride[0] = 0;
          const Isa isa = chosen_isa();
          ReleasedGil release;
          return first_unsorted(job, isa);
        },
        "times"_a, "lengths"_a.none(), "offsets"_a.none(),
        "The first trajectory with a stamp that is NaN or smaller than the stamp before it, or -1.");
}

} // namespace ridgeline
