// A list of objects, one a node, in the order in which they were seen: pass, layer, point, request
// and position of the first row that is not alike, the rank, the hashes of its tensor and of rank
// 0's, and what a finding says of it.
#include "src/session/ranks_apart.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// A run that goes wrong early leaves all later nodes of a rank other than their copies: the first
// tell where, and the rest would make the manifest as large as a trace.
constexpr size_t kMost = 1000;

// In sixteen digits, since a number of JSON does not keep 64 bits.
std::string hash_text_of(uint64_t hash) { return fmt::format("{:016x}", hash); }

uint64_t hash_from(const nlohmann::json& text) {
  return std::stoull(text.get<std::string>(), nullptr, 16);
}

// One entry, held to the graph, so that who looks its place up may count on it.
Apart one_from(const nlohmann::json& kept, const Graph& graph) {
  const Point* point = find_point(kept.at("point").get<std::string>());
  const Place place{point, kept.at("layer").get<int>()};
  check(point != nullptr && graph.has(place), "they name a place that the model has not");
  Finding finding{.node = {.place = place,
                           .pass = kept.at("pass").get<int32_t>(),
                           .request = kept.at("request").get<int32_t>()},
                  .position = kept.at("position").get<int32_t>(),
                  .verdict = Verdict::structural,
                  .rule = kept.at("says").get<std::string>()};
  return {.finding = std::move(finding),
          .rank = kept.at("rank").get<int>(),
          .own = hash_from(kept.at("xxh3")),
          .first = hash_from(kept.at("first_xxh3"))};
}

}  // namespace

std::string text_of(const std::vector<Apart>& apart) {
  auto all = nlohmann::json::array();
  for (size_t i = 0; i < std::min(apart.size(), kMost); ++i) {
    const Finding& f = apart[i].finding;
    all.push_back({{"pass", f.node.pass},
                   {"layer", f.node.place.layer},
                   {"point", f.node.place.point->name},
                   {"request", f.node.request},
                   {"position", f.position},
                   {"rank", apart[i].rank},
                   {"xxh3", hash_text_of(apart[i].own)},
                   {"first_xxh3", hash_text_of(apart[i].first)},
                   {"says", f.rule}});
  }
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<Apart> apart_in(const Manifest& manifest) {
  const auto found = manifest.provenance.find(std::string(kRanksApart));
  if (found == manifest.provenance.end()) return {};
  std::vector<Apart> apart;
  try {
    for (const nlohmann::json& kept : nlohmann::json::parse(found->second))
      apart.push_back(one_from(kept, manifest.graph));
  } catch (const std::exception& error) {
    fail(
        "what the trace says of ranks that are not alike cannot be read ({}): it was damaged, or "
        "made by another version",
        error.what());
  }
  return apart;
}

}  // namespace lockstep
