// Options are held against the table of points and the model's graph here, so that what follows can
// rely on them. Errors name the option that was wrong.
#include "src/replay/replay_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/plugin/user_ops.h"
#include "src/judge/ledger.h"
#include "src/model/op_names.h"
#include "src/replay/fused_by_pieces.h"
#include "src/session/device.h"
#include "traces/place_reader.h"
#include "traces/rope_pairs.h"

namespace lockstep {

Place place_of(const ReplayOptions& options, const Graph& graph) {
  std::vector<std::string_view> names;
  for (const Point& p : kPoints) names.push_back(p.name);
  const Point* p = find_point(options.point);
  check(p != nullptr, "--point wants a point, found '{}'{} (`lockstep points` lists them)",
        options.point, did_you_mean(options.point, names));
  check(p->op != OpKind::angles,
        "{} is no op of its own but a table that RoPE reads: replay attn.q_rope, which reads it",
        p->name);
  check(!p->is_of_shares(),
        "{} is no op of its own but of the shares of an attention, which only a list of "
        "instructions computes: replay attn.out, which is merged of them",
        p->name);
  check(!p->per_layer || options.layer >= 0,
        "{} is a point of every layer: say with --layer which one is wanted", p->name);
  check(p->per_layer || options.layer < 0, "{} is of no layer: leave out --layer", p->name);
  const Place place{p, options.layer};
  check(!p->per_layer || place.layer < graph.layers(),
        "--layer {} was asked for of a model with layers 0 to {}", place.layer, graph.layers() - 1);
  check(graph.has(place), "the model has no {} ({})", text_of(place), text_of(graph));
  return place;
}

// The places of a pass that replaying one of them needs: it, what it reads, and what wrote the
// cache that it reads.
std::vector<Place> needed_by(const Place& place, const Graph& graph) {
  std::vector<Place> needed = {place};
  for (size_t i = 0; i < needed.size(); ++i) {
    if (i > 0 && !needed[i].point->is_cache()) continue;
    for (const Place& input : graph.inputs_of(Place(needed[i])))
      if (std::ranges::count(needed, input) == 0) needed.push_back(input);
  }
  return needed;
}

std::vector<Place> needed_by(const CallPlaces& call, const Graph& graph) {
  std::vector<Place> needed = call.reads;
  for (const Place& output : call.outputs)
    if (!output.point->is_cache()) needed.push_back(output);
  for (const Place& read : call.reads)
    if (read.point->is_cache())
      for (const Place& input : graph.inputs_of(read)) needed.push_back(input);
  return needed;
}

Pass read_only(const OpenedTrace& trace, int number, const std::vector<Place>& places) {
  const auto wanted = [&](const Place& place) { return std::ranges::count(places, place) > 0; };
  Pass pass = read_places(*trace.reader, number, wanted);
  std::erase_if(pass.tensors, [&](const RecordedTensor& tensor) {
    return !wanted({tensor.point, tensor.layer});
  });
  if (trace.interleaved) put_pairs_in_halves(pass);
  return pass;
}

const char* remedy_of(const Manifest& manifest) {
  return manifest.level == TraceLevel::full
             ? "name an op whose inputs are there (`lockstep inspect` lists them), or show them too"
             : "run again with --keep full";
}

std::vector<Implementation> implementations_of(const ReplayOptions& options, Device device,
                                               const Place& place) {
  std::vector<Implementation> all = {{"lockstep", ops_of(device)}};
  if (options.ops.empty()) return all;
  ReplacedOps replaced = replace_ops(ops_of(device), options.ops, device);
  const auto computes = [&](std::string_view name) {
    return std::ranges::count(replaced.names, name) > 0;
  };
  const std::vector<std::string_view> wanted = op_names_of(place.point->op);
  check(std::ranges::any_of(wanted, computes),
        "{} has no op that computes {}: it is {}'s, and the library has {}", options.ops,
        text_of(place), fmt::join(wanted, " and "), fmt::join(replaced.names, ", "));
  all.push_back({options.ops, std::move(replaced.ops)});
  return all;
}

CallSource call_source_of(const ReplayOptions& options, std::string_view op, Device device,
                          const Place& place, const Graph& graph) {
  CallSource source{call_of(place, graph), {}};
  if (!options.ops.empty()) {
    Ops own = ops_of(device);
    own.fused = by_pieces(own);
    ReplacedOps replaced = replace_ops(own, options.ops, device);
    for (const std::string& name : replaced.names)
      if (!op.empty() && op != name)
        continue;
      else if (const auto fused = fused_call_of(name, place, graph))
        return {*fused, {{"lockstep", own}, {options.ops, std::move(replaced.ops)}}};
  }
  source.implementations = implementations_of(options, device, place);
  return source;
}

}  // namespace lockstep
