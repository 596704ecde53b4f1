// A list of objects, one a node, in the order in which they were seen: pass, layer, point, request
// and position of the first row that is not alike, the rank, the hashes of its tensor and of rank
// 0's, and what a finding says of it.
#include "src/session/ranks_apart.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "kernels/files/json.h"

namespace lockstep {
namespace {

// A run that goes wrong early leaves all later nodes of a rank other than their copies: the first
// tell where, and the rest would make the manifest as large as a trace.
constexpr size_t kMost = 1000;

// In sixteen digits, since a number of JSON does not keep 64 bits.
std::string hash_text_of(uint64_t hash) { return fmt::format("{:016x}", hash); }

uint64_t hash_from(const JsonValue& value) {
  const std::string& text = value.text();
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size()) value.refuse("a hash");
  return hash;
}

// One entry, held to the graph, so that who looks its place up may count on it.
Apart one_from(const JsonValue& kept, const Graph& graph) {
  const Place place{find_point(kept["point"].text()), kept["layer"].whole<int>(-1)};
  if (place.point == nullptr || !graph.has(place)) kept["point"].refuse("a place of the model");
  Finding finding{.node = {.place = place,
                           .pass = kept["pass"].whole<int32_t>(),
                           .request = kept["request"].whole<int32_t>()},
                  .position = kept["position"].whole<int32_t>(),
                  .verdict = Verdict::structural,
                  .rule = kept["says"].text()};
  return {.finding = std::move(finding),
          .rank = kept["rank"].whole<int>(0),
          .own = hash_from(kept["xxh3"]),
          .first = hash_from(kept["first_xxh3"])};
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
  const JsonDocument all(found->second, {"what the trace says of ranks that are not alike",
                                         "it was damaged, or made by another version"});
  std::vector<Apart> apart;
  for (const JsonValue& kept : all.root().items()) apart.push_back(one_from(kept, manifest.graph));
  return apart;
}

}  // namespace lockstep
