#include "src/session/user_op_calls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep {

UserOpCalls::UserOpCalls(std::string file, const std::vector<std::string>& names)
    : file_(std::move(file)) {
  for (const std::string& name : names) {
    ops_.emplace_back().name = name;
    covers_ |= name == kDecoderLayer.name;
  }
}

void UserOpCalls::count(Ops& ops) {
  const auto around = [this](std::string_view name, auto& entry) {
    const auto op = std::ranges::find(ops_, name, &Op::name);
    if (op == ops_.end()) return;
    wrap(entry, [&called = op->called](const auto& inner, const OpContext& context,
                                       const auto&... arguments) {
      called = true;
      inner(context, arguments...);
    });
  };
  for_each_op([&](const auto& row) { around(row.name, ops.*row.entry); });
  around(kAddRmsNorm.name, ops.fused.add_rms_norm);
  around(kQkvMatmul.name, ops.fused.qkv_matmul);
  around(kQkNormRopeKvWrite.name, ops.fused.qk_norm_rope_kv_write);
  around(kGateUpSilu.name, ops.fused.gate_up_silu);
  around(kDecoderLayer.name, ops.fused.decoder_layer);
  static_assert(kFusedOps.size() == 5, "every fused op of a user's is counted");
}

std::vector<std::string_view> UserOpCalls::names(bool called) const {
  std::vector<std::string_view> names;
  for (const Op& op : ops_)
    if (op.called == called) names.push_back(op.name);
  return names;
}

// Who reads which ops are the user's must not take those within a layer for tried.
std::string UserOpCalls::text_of(const std::vector<std::string_view>& names) const {
  if (names.empty()) return "";
  const bool covered = covers_ && names.size() > 1;
  return fmt::format("{} of {}{}", fmt::join(names, ", "), file_,
                     covered ? " (within layers decoder_layer alone)" : "");
}

std::string UserOpCalls::text() const {
  std::vector<std::string_view> all;
  for (const Op& op : ops_) all.push_back(op.name);
  return text_of(all);
}

std::string UserOpCalls::called() const { return text_of(names(true)); }

template <typename AnyResult>
void UserOpCalls::say_in(AnyResult& result) const {
  const std::vector<std::string_view> left = names(false);
  if (left.empty()) return;
  result.provenance["user_ops"] = called();
  const bool one = left.size() == 1;
  const std::string says = fmt::format(
      "{} of {} {} never called, so that nothing is known of {}: take a model and options that "
      "call {}, or try {} by lockstep ops",
      fmt::join(left, ", "), file_, one ? "was" : "were", one ? "it" : "them", one ? "it" : "them",
      one ? "it" : "them");
  if (result.verdict == RunVerdict::clean && left.size() == ops_.size()) {
    result.verdict = RunVerdict::inconclusive;
    result.story = fmt::format("{}. {}", says, result.story);
  } else {
    result.notes.push_back(says);
  }
}

void UserOpCalls::put_into(Result& result) const { say_in(result); }
void UserOpCalls::put_into(Determinism& result) const { say_in(result); }

}  // namespace lockstep
