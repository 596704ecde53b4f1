#include "traces/run_facts.h"

#include <charconv>
#include <limits>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// The text of that name; empty when the trace declares none.
std::string declared(const Manifest& manifest, const char* name) {
  const auto found = manifest.provenance.find(name);
  return found == manifest.provenance.end() ? "" : found->second;
}

// The whole number of that name, from `least` to `most`; 0 when the trace declares none.
int64_t number_of(const Manifest& manifest, const char* name, int64_t least, int64_t most) {
  if (!manifest.provenance.contains(name)) return 0;
  const std::string text = declared(manifest, name);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  check(
      error == std::errc() && end == text.data() + text.size() && number >= least && number <= most,
      "the trace declares {} '{}', and {} to {} was wanted: its page tables cannot be "
      "understood, write it anew",
      name, text, least, most);
  return number;
}

}  // namespace

RunFacts run_facts_of(const Manifest& manifest) {
  constexpr int64_t kMostPages = std::numeric_limits<int32_t>::max();
  return {.page_size = number_of(manifest, "page_size", 1, kMostPositions),
          .pages = number_of(manifest, "pages", 1, kMostPages),
          .sliding_window =
              number_of(manifest, "sliding_window", 0, std::numeric_limits<int64_t>::max()),
          .accumulator = declared(manifest, "accumulator"),
          .one_op = manifest.provenance.contains("before")};
}

}  // namespace lockstep
