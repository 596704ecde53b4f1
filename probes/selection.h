#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "probes/record.h"

namespace lockstep {

// Whether the whole of `name` fits a pattern of the shell: `*`, `?` and `[a-z]` (POSIX fnmatch).
// The time grows with the product of the lengths, whatever the pattern.
bool matches_glob(const std::string& glob, const std::string& name);

// Which nodes someone wants: the filters --points, --layers, --positions, --requests. Empty lists
// mean all. Points that are not of a layer pass every layer filter.
class Selection {
 public:
  Selection() = default;
  // points: comma-separated globs over point names ("attn.*,mlp.down"); a glob that matches no
  // point throws Error with the nearest name. layers, positions, requests: "0,3-5". Empty texts
  // mean all.
  Selection(const std::string& points, const std::string& layers, const std::string& positions,
            const std::string& requests);

  // Throws Error when a --layers range names a layer that a model of that many has not: nothing
  // would be looked at, and nothing be found wrong.
  void check_layers(int layers) const;

  bool has(const Point& point, int layer) const;
  bool has(const Row& row) const;
  bool has_request(int32_t request) const;
  bool has_every_row() const { return positions_.empty() && requests_.empty(); }
  bool is_everything() const;
  std::string text() const;  // as options, for the manifest; "" when everything

 private:
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // inclusive
  static Ranges ranges_from(const std::string& text, const char* option);

  std::string text_;
  std::vector<bool> points_;  // by order of kPoints; empty: all
  Ranges layers_, positions_, requests_;
};

}  // namespace lockstep
