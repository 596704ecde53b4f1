// The kit of who writes a fault: the op of some layers replaced or wrapped, hooks joined, tensors
// of any dtype read and written. Used within this room only; everything here runs on the engine's
// thread, on CPU tensors.
#pragma once

#include <cstring>
#include <memory>
#include <type_traits>

#include "src/faults/faults.h"

namespace lockstep {

// The table of each kind of bug, at the end of the file of its name: the seeding functions are its
// own, and catalogue.cc joins the tables.
extern const std::span<const Fault> kRopeFaults;
extern const std::span<const Fault> kNormFaults;
extern const std::span<const Fault> kAttentionFaults;
extern const std::span<const Fault> kSplitFaults;
extern const std::span<const Fault> kCacheFaults;
extern const std::span<const Fault> kServingFaults;
extern const std::span<const Fault> kLinearFaults;
extern const std::span<const Fault> kStreamFaults;
extern const std::span<const Fault> kMoeFaults;
extern const std::span<const Fault> kTokenFaults;
extern const std::span<const Fault> kGraphFaults;
extern const std::span<const Fault> kDeviceFaults;
extern const std::span<const Fault> kRankFaults;
extern const std::span<const Fault> kInstructionFaults;

// The column `applies` of those tables: the traits that a model must have for a fault to break
// anything. Those that one kind alone asks for stand above its table.
inline bool always(const ModelConfig&) { return true; }
inline bool has_dense(const ModelConfig& c) { return std::ssize(c.experts.layers) < c.layers; }

// A row of those tables whose bug is in a kernel of its own, which `right` seeds without it.
constexpr Fault held_to(decltype(Fault::right) right, Fault fault) {
  fault.right = right;
  return fault;
}

// Puts `wrong` in the place of an op in the layers of the request: wrong(inner, context, args...)
// with the op that was there before, which all other layers keep.
template <typename Signature, typename Wrong>
void inject(const Seams& seams, std::function<Signature> Ops::*op, const FaultRequest& request,
            Wrong wrong) {
  wrap(seams.ops.*op, [request, wrong = std::move(wrong)](
                          const auto& inner, const OpContext& context, const auto&... args) {
    if (!request.hits(context)) return inner(context, args...);
    wrong(inner, context, args...);
  });
}

// Has a hook do `more` after what it does already.
template <typename... Args>
void add_to(std::function<void(Args...)>& hook,
            std::type_identity_t<std::function<void(Args...)>> more) {
  hook = [inner = std::move(hook), more = std::move(more)](Args... args) {
    if (inner) inner(args...);
    more(args...);
  };
}

// The engine's description of the pass that it computes now, for ops, which are not told. The hook
// that fills it runs before any op of the pass does.
inline std::shared_ptr<const PassInfo> pass_of(const Seams& seams) {
  auto pass = std::make_shared<PassInfo>();
  add_to(seams.hooks.before_pass, [pass](Batch& batch) { *pass = batch.info; });
  return pass;
}

// A CPU tensor of its own, to be made wrong.
inline Tensor copy_of(const TensorView& right) {
  Tensor copy(right.shape, right.dtype);
  std::memcpy(copy.as<char>(), right.data, right.bytes());
  return copy;
}

// CPU elements of a float tensor, whatever its dtype. Faults are slow and plain on purpose.
inline float get(const TensorView& t, int64_t i) { return static_cast<float>(value_at(t, i)); }
inline void put(const TensorView& t, int64_t i, float value) {
  if (t.dtype == DType::bf16)
    t.as<BFloat16>()[i] = from_float<BFloat16>(value);
  else if (t.dtype == DType::f16)
    t.as<Float16>()[i] = from_float<Float16>(value);
  else
    t.as<float>()[i] = value;
}

// The number that is left of one that passes through bf16, whatever the dtype of the run.
inline float to_bf16(float x) { return to_float(from_float<BFloat16>(x)); }

}  // namespace lockstep
