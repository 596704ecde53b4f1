#include "src/judge/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/check.h"
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

double number_from(const Json& limits, const char* name, const std::string& path) {
  const auto found = limits.find(name);
  if (found != limits.end() && found->is_null()) return kUnlimited;
  const bool number = found != limits.end() && found->is_number() && found->get<double>() > 0;
  check(number,
        "{} should give a positive number, or null, as {} of every op, found {}: make it with "
        "lockstep calibrate",
        path, name, found == limits.end() ? "none" : found->dump());
  return found->get<double>();
}

}  // namespace

Reached reached_by(const Measure& measure) {
  Reached reached{.inner = measure.inner};
  for (const Statistic& statistic : measure.statistics) {
    if (is_rms(statistic.kind)) reached.rms = std::max(reached.rms, statistic.value);
  }
  return reached;
}

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
  std::ifstream file(path);
  check(file.good() && !std::filesystem::is_directory(path),
        "limits were wanted from {}, which is no file that can be read: make one with lockstep "
        "calibrate",
        path);
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  const bool ours = json.is_object() && json.value("format", Json()) == "lockstep-limits" &&
                    json.value("format_version", Json()) == "1.0" &&
                    json.value("limits", Json()).is_object();
  check(ours,
        "{} should be lockstep-limits 1.0 as JSON, found something else: make it with "
        "lockstep calibrate",
        path);
  Limits limits;
  for (const auto& [dtype, ops] : json.at("limits").items()) {
    check(ops.is_object(), "{} should give the ops of {} as an object, found {}", path, dtype,
          ops.dump());
    for (const auto& [name, values] : ops.items()) {
      const auto op = std::ranges::find(kOpKinds, name, &OpKindRow::name);
      check(
          op != kOpKinds.end() && judged_op(op->kind).is_calibrated && values.is_object(),
          "{} should give limits of ops that have some, found {}: make it with lockstep calibrate",
          path, name);
      OpLimits& of_op = limits.ops_[{op->kind, dtype_from(dtype)}];
      for (const Field& field : kFields) of_op.*field.value = number_from(values, field.name, path);
    }
  }
  return limits;
}

void tighten(Budget& budget, std::span<const double> want, DType dtype, const OpLimits& limits) {
  budget.gain = std::min(budget.gain, limits.gain);
  budget.misrounds = std::min(budget.misrounds, limits.share);
  for (double& chance : budget.misround) chance = std::min(chance, limits.share);
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
