// The call that each rank is about to make goes round before it, so that ranks that call different
// ones say so and do not hang, or add up what does not belong together.
#include "src/ranks/exchange.h"

#include <fmt/format.h>

#include "probes/points.h"

namespace lockstep {
namespace {

constexpr int64_t kFields = 5;
using Told = std::array<int64_t, kFields>;

Told told_of(const CollectiveCall& c) {
  return {static_cast<int64_t>(c.kind), c.point, c.layer, c.bytes, c.dtype};
}

// FNV's, of whole numbers.
int64_t next_hash(int64_t hash, int64_t field) {
  const uint64_t mixed = (static_cast<uint64_t>(hash) ^ static_cast<uint64_t>(field));
  return static_cast<int64_t>(mixed * 0x100000001b3);
}

CollectiveCall call_of(std::span<const int64_t> told) {
  return {static_cast<CollectiveCall::Kind>(told[0]), told[1], told[2], told[3], told[4]};
}

}  // namespace

TellCall told_by(Collectives& collectives) {
  return [&collectives](const CollectiveCall& mine) {
    const Told told = told_of(mine);
    std::vector<int64_t> all(kFields * collectives.ranks());
    const auto view = [](const int64_t* data, int64_t rows) {
      return TensorView{.data = const_cast<int64_t*>(data), .dtype = DType::i64, .shape = {rows}};
    };
    collectives.all_gather(view(all.data(), std::ssize(all)), view(told.data(), kFields));
    std::vector<CollectiveCall> calls;
    for (int rank = 0; rank < collectives.ranks(); ++rank)
      calls.push_back(call_of(std::span(all).subspan(rank * kFields, kFields)));
    return calls;
  };
}

std::string text_of(const CollectiveCall& call) {
  if (call.kind == CollectiveCall::Kind::graph)
    return fmt::format("a graph of {} collectives, {} bytes in all, replayed", call.point,
                       call.bytes);
  constexpr const char* kKinds[] = {"all-reduce", "all-gather", "reduce-scatter"};
  const std::string layer = call.layer < 0 ? "" : fmt::format("layer {} ", call.layer);
  return fmt::format("the {} of {}{}, {} bytes of {}", kKinds[static_cast<size_t>(call.kind)],
                     layer, kPoints.at(static_cast<size_t>(call.point)).name, call.bytes,
                     name_of(static_cast<DType>(call.dtype)));
}

RanksParted::RanksParted(int rank_, const CollectiveCall& theirs, const CollectiveCall& first)
    : Error(fmt::format("rank {} calls {} where rank 0 calls {}", rank_, text_of(theirs),
                        text_of(first))),
      rank(rank_),
      call(first) {}

void AgreedCalls::call(CollectiveCall::Kind kind, const OpContext& context,
                       const TensorView& tensor, const std::function<void()>& run) {
  const Point* point = find_point(context.point);
  const CollectiveCall mine{.kind = kind,
                            .point = point ? point->order() : 0,
                            .layer = context.layer,
                            .bytes = tensor.bytes(),
                            .dtype = static_cast<int64_t>(tensor.dtype)};
  agree(mine);
  run();
  if (waits_) waits_(nullptr);
  ++calls_;
  bytes_ += mine.bytes;
  ++now_->calls;
  now_->bytes += mine.bytes;
  for (const int64_t field : told_of(mine)) now_->order = next_hash(now_->order, field);
}

void AgreedCalls::agree(const CollectiveCall& mine) {
  if (waits_) waits_(&mine);
  const std::vector<CollectiveCall> all = tell_(mine);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (!(all[rank] == all[0])) throw RanksParted(static_cast<int>(rank), all[rank], all[0]);
}

void AgreedCalls::begin(int32_t pass, const DeviceBatch::Room& room) {
  if (pass == pass_) {  // its calls were counted as they were made
    calls_ -= now_->calls;
    bytes_ -= now_->bytes;
  }
  pass_ = pass;
  now_ = &passes_[room];
  *now_ = {};
}

// The rank waits from here on, in the calls that the device makes, until it does something else.
void AgreedCalls::replay(const DeviceBatch::Room& room) {
  const OfPass& captured = passes_[room];
  agree({.kind = CollectiveCall::Kind::graph,
         .point = captured.calls,
         .bytes = captured.bytes,
         .dtype = captured.order});
  calls_ += captured.calls;
  bytes_ += captured.bytes;
  ++replays_;
}

Exchange AgreedCalls::table() {
  using enum CollectiveCall::Kind;
  return {.all_reduce =
              [this](const OpContext& context, TensorView sum) {
                call(all_reduce, context, sum, [&] { collectives_.all_reduce(sum); });
              },
          .all_gather =
              [this](const OpContext& context, TensorView parts, TensorView part) {
                call(all_gather, context, part, [&] { collectives_.all_gather(parts, part); });
              },
          .reduce_scatter =
              [this](const OpContext& context, TensorView parts, TensorView part) {
                call(reduce_scatter, context, part,
                     [&] { collectives_.reduce_scatter(parts, part); });
              }};
}

}  // namespace lockstep
