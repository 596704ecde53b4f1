// The filters of what is looked at: points, layers, positions and requests, each up to a NUL.
#include "probes/selection.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  Bytes bytes(input);
  const std::string points(bytes.part()), layers(bytes.part()), positions(bytes.part()),
      requests(bytes.part());
  matches_glob(points, layers);
  const Selection selection(points, layers, positions, requests);
  if (selection.is_everything() != selection.text().empty()) wrong("a filter that says nothing");
  selection.check_layers(1 << 16);
}

}  // namespace lockstep::fuzz
