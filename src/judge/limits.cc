// Limits from a file, tighter than theory, by kind of op and dtype: what clean runs reached, times
// some room. They can only tighten: the budget of theory stays the largest that is ever allowed.
#include "src/judge/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/files/json.h"
#include "probes/digest.h"
#include "src/judge/ops/judged_op.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kRoom = 1.5;  // over what clean runs reached
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct Field {
  const char* name;
  double OpLimits::*value;
};
constexpr std::array kFields = {Field{"T1_inner", &OpLimits::inner}, Field{"T2_T4", &OpLimits::rms},
                                Field{"T3", &OpLimits::share}, Field{"T5_gain", &OpLimits::gain}};

bool is_rms(StatisticKind kind) {
  return kind == StatisticKind::rms_error || kind == StatisticKind::worst_slice;
}

// A limit; null stands for none.
double limit_from(const JsonValue& value) {
  if (value.is_null()) return kUnlimited;
  const double limit = value.number();
  if (!(limit > 0)) value.refuse("a number above 0, or null,");
  return limit;
}

}  // namespace

Reached reached_by(const Measure& measure) {
  Reached reached{.inner = measure.inner};
  for (const Statistic& statistic : measure.statistics) {
    if (is_rms(statistic.kind)) reached.rms = std::max(reached.rms, statistic.value);
  }
  return reached;
}

// The largest of each statistic over all clean runs.
void Reached::add(const Reached& other) {
  inner = std::max(inner, other.inner);
  rms = std::max(rms, other.rms);
  share = std::max(share, other.share);
  gain = std::max(gain, other.gain);
}

OpLimits Limits::of(OpKind op, DType dtype) const {
  const auto found = ops_.find({op, dtype});
  return found == ops_.end() ? OpLimits{} : found->second;
}

OpLimits limits_above(const Reached& reached, DType dtype, double room) {
  // A limit of 0 would say that nothing may ever be off: one part in 1000 of theory's is the least.
  // A statistic that is exactly 0 was not measured, for want of elements, and lowers nothing.
  const auto measured = [](double value, double limit) { return value > 0 ? limit : kUnlimited; };
  return {.inner = dtype == DType::f32 ? std::clamp(room * reached.inner, 1e-3, 1.0) : 1,
          .rms = measured(reached.rms, room * reached.rms + 0.02),
          .share = std::min(1.0, room * reached.share + 5e-4),
          .gain = measured(reached.gain, std::max(room * reached.gain, 1e-9))};
}

// Learnt from several runs, a limit is the widest of them, and one that was never measured gives
// way to one that was.
void Limits::learn(OpKind op, DType dtype, const Reached& reached) {
  const OpLimits learnt = limits_above(reached, dtype, kRoom);
  OpLimits& limits = ops_.try_emplace({op, dtype}, learnt).first->second;
  for (const Field& field : kFields) {
    double& limit = limits.*field.value;
    const double other = learnt.*field.value;
    limit = std::max(limit, other) < kUnlimited ? std::max(limit, other) : std::min(limit, other);
  }
}

std::string Limits::json() const {
  Json dtypes = Json::object();
  for (const auto& [key, limits] : ops_) {
    Json& op = dtypes[std::string(name_of(key.second))][name_of(key.first)];
    for (const Field& field : kFields) {
      const double value = limits.*field.value;
      op[field.name] = value < kUnlimited ? Json(value) : Json();
    }
  }
  return Json{{"format", "lockstep-limits"}, {"format_version", "1.0"}, {"limits", dtypes}}.dump(
             2) +
         "\n";
}

std::string Limits::name() const {
  if (ops_.empty()) return "theory";
  const std::string text = json();
  return fmt::format("{:016x}", hash_of(text.data(), text.size()));
}

Limits Limits::read(const std::string& path) {
  const JsonDocument document = JsonDocument::read(path, "make it with lockstep calibrate");
  const JsonValue root = document.root();
  if (!root["format"].is("lockstep-limits")) root["format"].refuse("\"lockstep-limits\"");
  if (!root["format_version"].is("1.0")) root["format_version"].refuse("\"1.0\"");
  Limits limits;
  for (const auto& [name, ops] : root["limits"].fields()) {
    if (!is_dtype(name)) ops.refuse("a dtype for a name");
    for (const auto& [op_name, values] : ops.fields()) {
      const auto op = std::ranges::find(kOpKinds, op_name, &OpKindRow::name);
      if (op == kOpKinds.end() || !judged_op(op->kind).is_calibrated)
        values.refuse("an op that has limits for a name");
      OpLimits& of_op = limits.ops_[{op->kind, dtype_from(name)}];
      for (const Field& field : kFields) of_op.*field.value = limit_from(values[field.name]);
    }
  }
  return limits;
}

// Learnt limits lower what theory allows, never raise it.
void tighten(Budget& budget, std::span<const double> want, DType dtype, const OpLimits& limits) {
  budget.gain = std::min(budget.gain, limits.gain);
  budget.misrounds = std::min(budget.misrounds, limits.share);
  // Shares say nothing about what cancels (Budget::usual_misround), or lies on a border.
  const double usual = std::min(budget.usual_misround, budget.misround_in_gain);
  for (double& chance : budget.misround)
    if (chance <= usual) chance = std::min(chance, limits.share);
  if (limits.inner >= 1) return;
  for (size_t i = 0; i < want.size(); ++i) {
    // The last rounding and underflow are no inner error, and stay as they are.
    const double underflow = budget.underflow.empty() ? 0 : budget.underflow[i];
    const double kept = ulp(want[i], dtype) / 2 + underflow;
    budget.limit[i] = kept + limits.inner * (budget.limit[i] - kept);
  }
}

void tighten(std::vector<Statistic>& statistics, const OpLimits& limits) {
  for (Statistic& statistic : statistics) {
    if (is_rms(statistic.kind)) statistic.limit = std::min(statistic.limit, limits.rms);
  }
}

}  // namespace lockstep
