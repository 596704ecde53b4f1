// A folder is read from its segments, and what these lack (all passes of which no tensor was kept,
// and those of a segment that is missing or damaged) from the journal, as digests. Passes of one
// run alone are taken: a segment of another run in the same place is told by its run_id.
#include "traces/readers.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include "kernels/base/check.h"
#include "kernels/files/text.h"
#include "traces/bare_file.h"
#include "traces/journal_reader.h"
#include "traces/place_reader.h"
#include "traces/seal.h"
#include "traces/segment.h"
#include "traces/trial.h"

namespace lockstep {
namespace {

// Passes gathered from segments and a journal. A pass is found by its number, not by its place:
// segments may come in any order, and the journal fills what they lack.
class SavedTrace final : public TraceReader, public PlaceReader {
 public:
  SavedTrace(Manifest manifest, std::string path)
      : manifest_(std::move(manifest)), path_(std::move(path)) {}

  const Manifest& manifest() const override { return manifest_; }
  int passes() const override { return static_cast<int>(sources_.size()); }
  bool complete() const override { return complete_; }
  const std::vector<std::string>& problems() const override { return problems_; }

  Pass read(int i, bool data) override {
    return read_places(i, [data](const Place&) { return data; });
  }

  Pass read_places(int i, const WantedPlaces& wanted) override {
    check(i >= 0 && i < passes(), "{}: pass {} was wanted of {}", path_, i, passes());
    const Source& source = std::next(sources_.begin(), i)->second;
    return source.segment ? source.segment->read(source.index, wanted)
                          : journal_->read(source.index);
  }

  void problem(std::string sentence) {
    complete_ = false;
    problems_.push_back(std::move(sentence));
  }
  // A sentence about a trace that may be whole.
  void remark(std::string sentence) { problems_.push_back(std::move(sentence)); }

  // Throws Error on a pass that is here already: which of the two the run computed is not known.
  void add(SegmentReader segment) {
    const SegmentReader& kept = segments_.emplace_back(std::move(segment));
    for (size_t i = 0; i < kept.columns().passes(); ++i) {
      const int32_t number = kept.columns().number[i];
      check(sources_.try_emplace(number, Source{&kept, i}).second,
            "{}: pass {} is there twice, in two segments, and which of them the run computed is "
            "not known: write the trace anew",
            path_, number);
    }
  }

  // Takes the passes that no segment has, and returns the numbers of those of which tensors were
  // kept. Throws Error on a pass that is there twice.
  std::vector<int32_t> add(std::unique_ptr<JournalReader> journal) {
    journal_ = std::move(journal);
    std::vector<int32_t> taken;
    std::set<int32_t> numbers;
    for (size_t i = 0; i < journal_->passes().size(); ++i) {
      const auto& [number, kept, block, begin, end] = journal_->passes()[i];
      check(numbers.insert(number).second, "{}: pass {} is there twice in its journal", path_,
            number);
      if (sources_.try_emplace(number, Source{nullptr, i}).second && kept) taken.push_back(number);
    }
    return taken;
  }

  void set_requests(std::vector<RequestInfo> requests) { manifest_.requests = std::move(requests); }

 private:
  struct Source {
    const SegmentReader* segment = nullptr;  // null: the journal
    size_t index = 0;
  };

  Manifest manifest_;
  std::string path_;
  bool complete_ = true;
  std::vector<std::string> problems_;
  std::deque<SegmentReader> segments_;  // a deque leaves its elements where they are
  std::unique_ptr<JournalReader> journal_;
  std::map<int32_t, Source> sources_;  // by number of the pass
};

std::string run_id_of(const Manifest& manifest) {
  const auto found = manifest.provenance.find("run_id");
  return found == manifest.provenance.end() ? "" : found->second;
}

// "3..5, 9": the passes of those numbers, for people.
std::string ranges_text(const std::vector<int32_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += fmt::format("..{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

// Says which segments are missing before the last.
void name_missing(const std::string& folder, const std::map<int, std::string>& paths,
                  SavedTrace& trace) {
  int next = 0;
  for (const auto& [number, path] : paths) {
    if (number == next + 1)
      trace.problem(fmt::format("{}/seg-{:06}.h5 is missing", folder, next));
    else if (number > next)
      trace.problem(fmt::format("{}/seg-{:06}.h5 to seg-{:06}.h5 are missing, {} segments", folder,
                                next, number - 1, number - next));
    next = number + 1;
  }
}

// Opens every segment of the folder; says which are damaged, missing or of another run.
void add_segments(const std::string& folder, SavedTrace& trace) {
  const std::regex name("seg-(\\d{6})\\.h5");
  std::map<int, std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename();
    std::smatch match;
    if (std::regex_match(file, match, name)) paths[std::stoi(match[1])] = entry.path();
  }
  name_missing(folder, paths, trace);
  for (const auto& [number, path] : paths) {
    std::optional<SegmentReader> segment;
    try {
      // A segment that would crash HDF5 is found out in a child process first.
      try_reading(path, [&file = path] { SegmentReader(file).open_tensors(); });
      segment.emplace(path);
      check(segment->run_id() == run_id_of(trace.manifest()),
            "{}: it belongs to another run than its folder's manifest", path);
    } catch (const Error& error) {
      trace.problem(error.what());
      continue;
    }
    trace.add(std::move(*segment));
  }
}

// Takes what no segment has from the journal, and says what of that is only a digest now.
void add_journal(const std::string& folder, SavedTrace& trace) {
  try {
    const std::string path = journal_in(folder), old = folder + "/journal.jsonl";
    check(std::filesystem::exists(path) || !std::filesystem::exists(old),
          "{}: a journal of JSON lines is not read any more: read it with the version that wrote "
          "it, or write it anew",
          old);
    auto journal = std::make_unique<JournalReader>(path);
    const SavedManifest& saved = journal->saved();
    check(run_id_of(saved.manifest) == run_id_of(trace.manifest()),
          "{}: it belongs to another run than its folder's manifest", path);
    if (saved.ended()) trace.set_requests(saved.manifest.requests);
    if (!journal->problem().empty()) trace.problem(journal->problem());
    const std::vector<int32_t> taken = trace.add(std::move(journal));
    if (!taken.empty())
      trace.problem(fmt::format(
          "the segment of passes {} was never closed or is damaged: their tensors are lost, their "
          "digests are taken from the journal",
          ranges_text(taken)));
  } catch (const Error& error) {
    trace.problem(error.what());
  }
}

// Says what of `saved` the trace lacks.
void check_whole(const SavedManifest& saved, const std::string& path, SavedTrace& trace) {
  if (!saved.ended())
    trace.problem(
        fmt::format("{}: the run did not end; {} passes of it are here", path, trace.passes()));
  else if (trace.passes() != saved.passes)
    trace.problem(fmt::format("{}: {} of its {} passes are missing altogether", path,
                              saved.passes - trace.passes(), saved.passes));
}

bool is_bare(const std::string& path, bool sealed) {
  return !sealed && !Hdf5File::open_unsealed(path).has("/index");
}

SegmentReader segment_at(const std::string& path, bool sealed) {
  return SegmentReader(sealed ? Hdf5File::open(path) : Hdf5File::open_unsealed(path));
}

// Reads all of the file that HDF5 does not keep as plain numbers.
void try_single_file(const std::string& path, bool sealed) {
  if (is_bare(path, sealed)) {
    open_bare(path);
    return;
  }
  const SegmentReader file = segment_at(path, sealed);
  file.manifest();
  file.open_tensors();
}

}  // namespace

std::unique_ptr<TraceReader> open_folder(const std::string& path) {
  check(!std::filesystem::is_empty(path),
        "{}: a folder of segments was wanted, but it is empty: give the folder that --trace made",
        path);
  const std::string file = path + "/manifest.json";
  check(std::filesystem::exists(file),
        "{}: a trace was wanted, but the folder has no manifest.json: give the folder that --trace "
        "made",
        path);
  const SavedManifest saved = manifest_from(read_text(file, kMostManifest), file);
  auto trace = std::make_unique<SavedTrace>(saved.manifest, path);
  add_segments(path, *trace);
  // The journal is read when no segment has all of the passes.
  if (!saved.ended() || !trace->complete() || trace->passes() != saved.passes)
    add_journal(path, *trace);
  check_whole(saved, path, *trace);
  return trace;
}

std::unique_ptr<TraceReader> open_single_file(const std::string& path) {
  const bool sealed = !is_unsealed(path);
  try_reading(path, [&] { try_single_file(path, sealed); });
  if (is_bare(path, sealed)) return open_bare(path);
  SegmentReader file = segment_at(path, sealed);
  auto trace = std::make_unique<SavedTrace>(file.manifest(), path);
  if (!sealed) trace->remark("unsealed: made by another program; hashes are those that it wrote");
  trace->add(std::move(file));
  return trace;
}

std::unique_ptr<TraceReader> open_journal(const std::string& path) {
  auto journal = std::make_unique<JournalReader>(path);
  const SavedManifest saved = journal->saved();
  auto trace = std::make_unique<SavedTrace>(saved.manifest, path);
  if (!journal->problem().empty()) trace->problem(journal->problem());
  trace->add(std::move(journal));
  check_whole(saved, path, *trace);
  return trace;
}

}  // namespace lockstep
