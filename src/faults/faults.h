// Bugs that can be seeded into the engine, to see the tool see them.
//
// To add one: write its seeding function in the file of its kind (rope_faults.cc ...) and add its
// row to the table at the end of that file. Tests and commands take them from faults().
// A fault changes the engine's arguments, tables, memory or kernels; it shares no code with the
// reference.
//
// A fault reaches the engine through the seams that anybody else has, in one of these ways:
//
//     inject(seams, &Ops::rope, request, wrong)   the op in the layers that were asked for; the op
//                                                 that was there is an argument, and may be called
//     add_to(seams.hooks.after_plan, ..)          pages, before a pass is described
//     add_to(seams.hooks.before_pass, ..)         the arguments of a pass, all layers of it
//     add_to(seams.hooks.before_replay, ..)       what a CUDA graph reads
//
// Wrong ops are plain loops in fp32 over CPU tensors, slow on purpose; on a device the arguments
// are staged in host memory for them, but for faults of device kernels and of graphs.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "src/engine/engine.h"
#include "src/instructions/interpreter.h"
#include "src/ranks/rank_seams.h"

namespace lockstep {

// One fault as a user asks for it.
struct FaultRequest {
  std::string name;
  int layer = -1;      // -1: every layer
  double size = 0;     // of faults that have a size; 0: the fault's own default
  int rank = -1;       // of a model over ranks; -1: every rank
  bool right = false;  // not the bug, but what its bits are held to (Fault::right)

  // Whether an op that runs now is in the layer to break.
  bool hits(const OpContext& context) const { return layer < 0 || layer == context.layer; }
};

// Everything that a fault may change. Every fault wraps what it finds, so several can be seeded at
// once. Hooks remember what they have seen of an engine: one engine each. References to the table
// and hooks of one engine, which must not have been built yet: it takes copies.
struct Seams {
  Ops& ops;
  Engine::Hooks& hooks;
  const ModelConfig& config;
  // Kernels with bugs (kernels/faults/broken_ops.h); null where `ops` are not a device's own.
  const Ops* broken = nullptr;
  // Null where the model is not one over ranks.
  const RankSeams* ranks = nullptr;
  // Null where passes are not computed as the instructions of a schedule.
  InterpreterOptions* step = nullptr;
};

struct Fault {
  // Where it is seeded.
  enum class Seat : uint8_t {
    host,          // in what the host does, which tensors of a device are staged in
    device,        // in the kernels of a CUDA device
    graphs,        // in what a CUDA device replays decode passes from
    ranks,         // in how a model is shared by ranks
    instructions,  // in the instructions of a step, or in what they do
  };

  std::string_view name;
  std::string_view point;  // the first point that shows it
  std::string_view says;   // what is wrong, for people
  std::string_view needs;  // what a run must have, else nothing can be seen
  // Its default size, and others that a selftest tries too; 0: no more, and first of all none.
  std::array<double, 3> sizes;
  bool (*applies)(const ModelConfig& config);
  void (*seed)(const Seams& seams, const FaultRequest& request);
  bool one_layer = true;  // false: a bug of pages or tokens, which no layer has of its own
  Seat seat = Seat::host;
  // Seeds the kernel that the bug is in, without it. That kernel adds up in another order than the
  // engine's, which changes bits where the bug does nothing. Null: the bug is in what was there.
  void (*right)(const Seams& seams, const FaultRequest& request) = nullptr;
};

// In the order of the tables in catalogue.cc; names are unique.
std::span<const Fault> faults();
// The row of a fault that is in the table.
const Fault& fault_of(const FaultRequest& request);

// "NAME", "NAME@layer=2", "NAME@layer=2,size=1e-4". Throws Error on an unknown name (with the
// nearest one), an unknown key, or a value that is no number.
FaultRequest parse_fault(std::string_view text);
// Each of them.
std::vector<FaultRequest> parse_faults(const std::vector<std::string>& texts);

// Seeds it. Throws Error when the model or the fault has no such layer, the model has nothing that
// the fault could break, or the size makes no sense. One that is right may seed nothing.
void seed_fault(const Seams& seams, const FaultRequest& request);

}  // namespace lockstep
