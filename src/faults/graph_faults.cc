// Bugs of graphs that are replayed: what a graph reads from one replay to the next lies in device
// memory, and so does what pads its passes.
//
// A graph's arguments are at fixed addresses that the host fills before each replay. These faults
// change them there, after the host did, as a kernel would that keeps a pointer or a copy of its
// own.
#include <map>
#include <utility>

#include "src/faults/seeds.h"

namespace lockstep {
namespace {

void seed_graph_replays_stale_positions(const Seams& seams, const FaultRequest&) {
  // By where a graph has its arguments, which is a place of its own.
  const auto stale = std::make_shared<std::map<const void*, Tensor>>();
  add_to(seams.hooks.before_replay, [stale](const Batch& batch) {
    const TensorView& positions = batch.positions;
    const auto [kept, first] = stale->try_emplace(positions.data);
    if (first) kept->second = copy_on(positions.device, positions);
    copy(positions, kept->second);
  });
}

void seed_padded_row_writes_live_slot(const Seams& seams, const FaultRequest&) {
  // The slot that the first request's row had in the replay before: its newest key but one.
  const auto live = std::make_shared<PassRow>();
  add_to(seams.hooks.before_replay, [live](const Batch& batch) {
    const PassRow row = batch.info.rows[0], before = std::exchange(*live, row);
    const auto rows = std::ssize(batch.info.rows);
    // The slot must be one of a token that the next pass reads, or nobody would notice.
    const bool follows =
        before.row.request == row.row.request && before.row.position + 1 == row.row.position;
    if (!follows || batch.slots.view().count() == rows) return;
    const int64_t slot[] = {before.slot};
    copy(batch.slots.view().slice(rows, 1), tensor_of<int64_t>(slot, {1}, DType::i64));
  });
}

constexpr Fault kGraphRows[] = {
    {"graph-replays-stale-positions",
     "attn.q_rope",
     "a graph keeps the positions of its first replay",
     "--device cuda; several decode passes",
     {},
     always,
     seed_graph_replays_stale_positions,
     false,
     Fault::Seat::graphs},
    {"padded-row-writes-live-slot",
     "attn.kv",
     "the K and V of a row that pads a graph go where those of a token are",
     "--device cuda; decode passes of 3 requests, or another number that is no power of two",
     {},
     always,
     seed_padded_row_writes_live_slot,
     false,
     Fault::Seat::graphs},
};

}  // namespace

constinit const std::span<const Fault> kGraphFaults = kGraphRows;

}  // namespace lockstep
