#include <filesystem>

#include "kernels/base/check.h"
#include "traces/readers.h"
#include "traces/writers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Format {
  std::string_view extension;           // of the path, to create one
  bool (*is)(const std::string& path);  // whether what lies there is to be opened as one
  std::unique_ptr<TraceWriter> (*create)(const std::string& path, const Manifest& manifest);
  std::unique_ptr<TraceReader> (*open)(const std::string& path);
};

bool is_folder(const std::string& path) { return fs::is_directory(path); }
bool is_h5(const std::string& path) { return path.ends_with(".h5"); }
bool is_journal_file(const std::string& path) { return path.ends_with(".journal"); }

// The trace formats; the first whose `is` says so opens a path. To add one: write its reader (and
// writer) in a file here, add a row, and describe it in README.md.
constexpr Format kFormats[] = {
    {".trace", is_folder, create_folder, open_folder},
    {".h5", is_h5, create_single_file, open_single_file},
    {".journal", is_journal_file, create_journal, open_journal},
};

std::string extensions() {
  std::string text;
  for (const Format& format : kFormats)
    text += fmt::format("{}X{}", text.empty() ? "" : ", ", format.extension);
  return text;
}

}  // namespace

// Nothing is overwritten: a trace may have taken hours on a machine that is gone.
std::unique_ptr<TraceWriter> create_trace(const std::string& path, const Manifest& manifest) {
  for (const Format& format : kFormats) {
    if (!path.ends_with(format.extension)) continue;
    check(!fs::exists(path), "{}: exists already: remove it or choose another --trace", path);
    check(!fs::exists(path + ".part"),
          "{0}.part: is left of a run that did not end: it opens as a trace; move it or choose "
          "another "
          "--trace",
          path);
    return format.create(path, manifest);
  }
  fail("{}: no trace format has that name: use {}", path, extensions());
}

std::unique_ptr<TraceReader> open_trace(const std::string& path) {
  std::error_code ignored;  // at a name that is too long there is nothing either
  check(fs::exists(path, ignored), "{}: a trace was wanted, but nothing is there", path);
  for (const Format& format : kFormats)
    if (format.is(path)) return format.open(path);
  fail("{}: no trace format has that name: use {}", path, extensions());
}

}  // namespace lockstep
