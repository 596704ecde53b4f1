#include "traces/kept_verdict.h"

#include <filesystem>

#include "kernels/files/disk.h"
#include "kernels/files/text.h"
#include "traces/manifest.h"

namespace lockstep {

bool keep_verdict(const std::string& path, const std::string& verdict, const std::string& story) {
  const std::string file = path + "/manifest.json";
  if (!std::filesystem::is_directory(path) || !std::filesystem::exists(file)) return false;
  SavedManifest saved = manifest_from(read_text(file, kMostManifest), file);
  saved.manifest.provenance[kVerdictFact] = verdict;
  saved.manifest.provenance[kStoryFact] = story;
  replace_file(file, json_of(saved, Layout::pretty), Durable::yes);
  return true;
}

}  // namespace lockstep
