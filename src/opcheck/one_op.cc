// The user's op takes its place in a table whose other entries are Lockstep's own. Fused ops of
// that table are made of their pieces, on which Lockstep's own side of a fused case is timed.
// Whatever the user's op throws becomes an OpError, by which the trial tells the op's faults from
// its own.
#include "src/opcheck/one_op.h"

#include <cstring>
#include <set>
#include <type_traits>

#include "kernels/base/memory.h"
#include "src/replay/fused_by_pieces.h"

namespace lockstep {
namespace {

// A cache before a call that writes some of its slots. An op that writes beside its slots is right
// in what it was asked for and damages another request, which no comparison of results would show.
class SlotGuard {
 public:
  SlotGuard(const KvCache& cache, const TensorView& slots)
      : cache_(cache),
        slots_(copy_on(Device::cpu, slots)),
        k_(copy_on(Device::cpu, cache.k)),
        v_(copy_on(Device::cpu, cache.v)) {}

  // Throws OpError where another slot than those was written.
  void check_others(const std::string& who) const {
    std::set<int64_t> own;
    for (int64_t i = 0; i < slots_.view().count(); ++i) own.insert(slots_.as<int64_t>()[i]);
    const Tensor k = copy_on(Device::cpu, cache_.k), v = copy_on(Device::cpu, cache_.v);
    const int64_t count = cache_.pages() * cache_.page_size();
    const int64_t bytes = k.view().bytes() / count;
    for (int64_t slot = 0; slot < count; ++slot) {
      if (own.contains(slot)) continue;
      const auto same = [&](const Tensor& before, const Tensor& now) {
        return std::memcmp(before.as<char>() + slot * bytes, now.as<char>() + slot * bytes,
                           static_cast<size_t>(bytes)) == 0;
      };
      if (!same(k_, k) || !same(v_, v))
        throw OpError(fmt::format(
            "{} wrote slot {} of the cache (page {}, offset {}), which another token may have: "
            "write the slots that it is given alone",
            who, slot, slot / cache_.page_size(), slot % cache_.page_size()));
    }
  }

 private:
  KvCache cache_;
  Tensor slots_, k_, v_;
};

template <typename Call>
// A refusal is an answer, and passes through.
void as_op_error(const Call& call) {
  try {
    call();
  } catch (const OpRefusal&) {
    throw;
  } catch (const Error& error) {
    throw OpError(error.what());
  }
}

// Puts the user's op into the table, with what is held against it around it.
class Putting {
 public:
  Putting(std::string_view op, const Ops& of_user, const std::string& library, OneOp& made)
      : op_(op), of_user_(of_user), who_(fmt::format("{} of {}", op, library)), made_(made) {}

  void put(Ops& ops) {
    for_each_op([&](const auto& row) {
      if (row.name == op_) put(ops, row);
    });
    put(kAddRmsNorm, ops.fused.add_rms_norm, of_user_.fused.add_rms_norm);
    put(kQkvMatmul, ops.fused.qkv_matmul, of_user_.fused.qkv_matmul);
    put(kGateUpSilu, ops.fused.gate_up_silu, of_user_.fused.gate_up_silu);
    if (op_ != kQkNormRopeKvWrite.name) return;
    ops.fused.qk_norm_rope_kv_write = [inner = of_user_.fused.qk_norm_rope_kv_write, who = who_,
                                       calls = made_.calls](const OpContext& context,
                                                            const QkNormRopeKvWrite& a) {
      ++*calls;
      const SlotGuard guard(a.cache, a.slots);
      as_op_error([&] { inner(context, a); });
      guard.check_others(who);
    };
  }

 private:
  template <typename Row>
  void put(Ops& ops, const Row& row) {
    auto& entry = ops.*row.entry;
    entry = of_user_.*row.entry;
    wrap(entry, [who = who_, calls = made_.calls](const auto& inner, const OpContext& context,
                                                  const auto& out, const auto&... in) {
      ++*calls;
      if constexpr (std::is_same_v<std::decay_t<decltype(out)>, KvCache>) {
        const SlotGuard guard(out, std::get<sizeof...(in) - 1>(std::tie(in...)));
        as_op_error([&] { inner(context, out, in...); });
        guard.check_others(who);
      } else {
        as_op_error([&] { inner(context, out, in...); });
      }
    });
  }
  template <typename Signature>
  void put(const FusedRow& row, std::function<Signature>& to,
           const std::function<Signature>& from) {
    if (row.name != op_) return;
    to = [from, calls = made_.calls](const OpContext& context, const auto&... arguments) {
      ++*calls;
      as_op_error([&] { from(context, arguments...); });
    };
  }

  std::string_view op_;
  const Ops& of_user_;
  std::string who_;
  OneOp& made_;
};

}  // namespace

OneOp one_op(std::string_view op, const Ops& own, const Ops& of_user, const std::string& library) {
  OneOp made{.implementations = {}, .calls = std::make_shared<int64_t>(0)};
  Ops ops = own;
  ops.fused = by_pieces(own);
  made.implementations.push_back({"lockstep", ops});
  Putting(op, of_user, library, made).put(ops);
  made.implementations.push_back({library, std::move(ops)});
  return made;
}

}  // namespace lockstep
