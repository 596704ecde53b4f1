#include "src/session/kept_result.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/base/check.h"
#include "src/report/output.h"
#include "src/report/render.h"
#include "src/report/report.h"
#include "src/report/trace_report.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Where reports of every kind say what they are: at their beginning.
constexpr size_t kBeginning = 200;

std::string kept_in(const std::string& trace) { return (fs::path(trace) / "result.json").string(); }

std::string content_of(const std::string& path, size_t most = std::string::npos) {
  std::ifstream file(path, std::ios::binary);
  check(file.good(), "{} cannot be read; name a result (--json of lockstep run) or a trace", path);
  if (most == std::string::npos)
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::string text(most, '\0');
  file.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

void keep_result(const std::string& trace, const Result& result) {
  if (fs::is_directory(trace)) write_file(kept_in(trace), report_json(result));
}

std::string page_of_file(const std::string& path) {
  if (!fs::is_directory(path)) {
    const std::string begins = content_of(path, kBeginning);
    if (begins.find("\"lockstep-result\"") != begins.npos)
      return page_of(result_from_json(content_of(path), path));
    check(begins.find("\"lockstep-diff\"") == begins.npos,
          "{} is the comparison of two traces, whose page lockstep diff A B --html FILE writes",
          path);
  } else if (const std::string kept = kept_in(path); fs::exists(kept)) {
    return page_of(result_from_json(content_of(kept), kept));
  }
  const auto trace = open_trace(path);
  return render_html(inspect(*trace, {.path = path}));
}

}  // namespace lockstep
