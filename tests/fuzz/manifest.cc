// A manifest, the contracts and the draws of an HDF5 trace: its JSON, by its first byte.
#include "traces/manifest.h"

#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  const std::string_view text = input.substr(input.empty() ? 0 : 1);
  if (input.starts_with('c')) {
    contracts_from_json(std::string(text), "x.h5");
  } else if (input.starts_with('d')) {
    draw_from_json(std::string(text), "x.h5");
  } else {
    const SavedManifest saved = manifest_from(text, "x.journal");
    const std::string again = json_of(saved, Layout::pretty);
    if (json_of(manifest_from(again, "again"), Layout::pretty) != again)
      wrong("a manifest is another when it was written and read again");
    columns_of(saved.manifest.graph);
  }
}

}  // namespace lockstep::fuzz
