// A page needs a result: one that is given as JSON, one that the trace keeps, or, where there is
// neither, what a look into the trace shows without a judgement.
#include "src/session/kept_result.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "kernels/base/check.h"
#include "kernels/files/text.h"
#include "src/report/output.h"
#include "src/report/render.h"
#include "src/report/report.h"
#include "src/report/trace_report.h"
#include "traces/kept_result.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Where reports of every kind say what they are: at their beginning.
constexpr size_t kBeginning = 200;
constexpr size_t kMostReport = size_t{1} << 30;  // bytes

std::string content_of(const std::string& path, size_t most) {
  const InputFile file(path);
  std::string text(most, '\0');
  const ssize_t got = ::pread(file.descriptor(), text.data(), most, 0);
  check(got >= 0, "{} cannot be read; name a result (--json of lockstep run) or a trace", path);
  text.resize(got);
  return text;
}

}  // namespace

bool keep_result(const std::string& trace, const Result& result) {
  if (!can_keep_result(trace)) return false;
  try {
    write_kept_result(trace, report_json(result));
    return true;
  } catch (const Error& error) {
    fmt::print(stderr, "warning: the trace does not keep its verdict: {}\n", error.what());
    return false;
  }
}

// A result is known by its first bytes, for its name may be anything; all else is opened as a
// trace.
std::string page_of_file(const std::string& path) {
  if (!fs::is_directory(path)) {
    const std::string begins = content_of(path, kBeginning);
    if (begins.find("\"lockstep-result\"") != begins.npos)
      return page_of(result_from_json(read_text(path, kMostReport), path));
    check(begins.find("\"lockstep-diff\"") == begins.npos,
          "{} is the comparison of two traces, whose page lockstep diff A B --html FILE writes",
          path);
    check(begins.find("\"lockstep-") == begins.npos,
          "{} is neither a result nor a trace but JSON of another command of lockstep: give what "
          "run or judge wrote with --json, or a trace",
          path);
  }
  const auto trace = open_trace(path);
  // A verdict on what was whole is none on what is left of it.
  const std::string kept = trace->complete() ? read_kept_result(path) : "";
  return kept.empty() ? render_html(inspect(*trace, {.path = path}).document)
                      : page_of(result_from_json(kept, path));
}

}  // namespace lockstep
