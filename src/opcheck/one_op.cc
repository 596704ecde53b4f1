// The user's op takes its place in a table whose other entries are Lockstep's own. Fused ops of
// that table are made of their pieces, on which Lockstep's own side of a fused case is timed.
// Whatever the user's op throws becomes an OpError, by which the trial tells the op's faults from
// its own.
#include "src/opcheck/one_op.h"

#include <cstring>
#include <optional>
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

// A call of an op that writes a cache, made once more with slots of -1 in some of its rows, which
// must write nowhere: rows that pad a batch have such slots, and no pass of the grid is padded. The
// row whose slot is 0 is one of them, since an op may take that for the place of nobody. The cache
// is a copy, behind a page that nobody has.
class PaddedCall {
 public:
  PaddedCall(const KvCache& before, const TensorView& slots)
      : page_bytes_(before.k.bytes() / before.pages()),
        slot_bytes_(page_bytes_ / before.page_size()),
        k_(behind_a_page(before.k)),
        v_(behind_a_page(before.v)),
        slots_(copy_on(Device::cpu, slots)),
        device_slots_(copy_on(slots.device, padded())),
        device_k_(copy_on(before.k.device, k_)),
        device_v_(copy_on(before.v.device, v_)),
        cache_{device_k_.part(page_bytes_, before.k.shape, before.k.dtype),
               device_v_.part(page_bytes_, before.v.shape, before.v.dtype)} {}

  KvCache cache() const { return cache_; }
  const TensorView& slots() const { return device_slots_; }

  // Throws OpError where a row that is left out wrote anything, or one that is not has not what the
  // same row has in `right`, the cache after the call of all rows.
  void check_against(const KvCache& right, const std::string& who) const {
    compare(k_, device_k_, right.k, who);
    compare(v_, device_v_, right.v, who);
  }

 private:
  bool is_kept(int64_t row) const { return row % 2 == 1 && slots_.as<int64_t>()[row] > 0; }

  Tensor behind_a_page(const TensorView& half) const {
    const Tensor all({half.shape[0] + 1, half.shape[1], half.shape[2], half.shape[3]}, half.dtype);
    std::memset(all.as<char>(), 0, static_cast<size_t>(page_bytes_));
    copy(all.part(page_bytes_, half.shape, half.dtype), half);
    return all;
  }

  Tensor padded() const {
    const Tensor some(slots_.view().shape, DType::i64);
    for (int64_t row = 0; row < slots_.view().count(); ++row)
      some.as<int64_t>()[row] = is_kept(row) ? slots_.as<int64_t>()[row] : -1;
    return some;
  }

  void compare(const Tensor& before, const Tensor& after, const TensorView& right,
               const std::string& who) const {
    const Tensor now = copy_on(Device::cpu, after), all = copy_on(Device::cpu, right);
    std::set<int64_t> kept;
    for (int64_t row = 0; row < slots_.view().count(); ++row)
      if (is_kept(row)) kept.insert(slots_.as<int64_t>()[row]);
    const int64_t margin = page_bytes_ / slot_bytes_;
    for (int64_t slot = -margin; slot < all.view().bytes() / slot_bytes_; ++slot) {
      const bool is_own = kept.contains(slot);
      const char* want = is_own ? all.as<char>() + slot * slot_bytes_
                                : before.as<char>() + (slot + margin) * slot_bytes_;
      if (std::memcmp(want, now.as<char>() + (slot + margin) * slot_bytes_,
                      static_cast<size_t>(slot_bytes_)) == 0)
        continue;
      if (is_own)
        throw OpError(fmt::format(
            "{} writes slot {} of the cache otherwise where the slots of other rows are -1: rows "
            "with a negative slot write nowhere, and all others as ever",
            who, slot));
      throw OpError(fmt::format(
          "{} wrote slot {} of the cache, which no row has, in a call in which the slots "
          "of some rows are -1: a row with a negative slot must write nowhere",
          who, slot));
    }
  }

  int64_t page_bytes_, slot_bytes_;
  Tensor k_, v_, slots_, device_slots_, device_k_, device_v_;
  KvCache cache_;
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
      std::optional<PaddedCall> padded;
      if (*calls == 1) padded.emplace(a.cache, a.slots);
      as_op_error([&] { inner(context, a); });
      guard.check_others(who);
      if (!padded) return;
      QkNormRopeKvWrite again = a;
      const Tensor q_rope(a.q_rope.shape, a.q_rope.dtype, a.q_rope.device);
      again.q_rope = q_rope, again.cache = padded->cache(), again.slots = padded->slots();
      as_op_error([&] { inner(context, again); });
      padded->check_against(a.cache, who);
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
        write_cache(inner, context, out, in..., who, *calls == 1);
      } else {
        as_op_error([&] { inner(context, out, in...); });
      }
    });
  }
  template <typename Inner>
  static void write_cache(const Inner& inner, const OpContext& context, const KvCache& cache,
                          const TensorView& k, const TensorView& v, const TensorView& slots,
                          const std::string& who, bool is_first) {
    const SlotGuard guard(cache, slots);
    std::optional<PaddedCall> padded;
    if (is_first) padded.emplace(cache, slots);
    as_op_error([&] { inner(context, cache, k, v, slots); });
    guard.check_others(who);
    if (!padded) return;
    as_op_error([&] { inner(context, padded->cache(), k, v, padded->slots()); });
    padded->check_against(cache, who);
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
