// A judgement kept in its trace: behind the end of a single file, as the last record of a journal,
// or beside the segments of a folder. It has a head with its length and hash, is written over the
// one before, and is never covered by the trace's own seal: a trace may be judged again without
// becoming another trace.
#include "traces/kept_result.h"

#include <cstdio>
#include <filesystem>

#include "kernels/base/check.h"
#include "kernels/files/disk.h"
#include "kernels/files/text.h"
#include "probes/digest.h"
#include "traces/journal_reader.h"
#include "traces/seal.h"

namespace lockstep {
namespace {

constexpr size_t kMostResult = size_t{1} << 30;  // bytes
// Fixed widths, so that sscanf has nothing to guess.
constexpr const char* kHead = "lockstep result: {:016x} bytes, xxh3 {:016x}\n";
constexpr const char* kResultScan = "lockstep result: %16lx bytes, xxh3 %16lx\n";

bool is_journal(const std::string& path) { return path.ends_with(".journal"); }

std::string file_in(const std::string& folder) { return folder + "/result.json"; }

// Where the trace in an HDF5 file ends, and what follows it.
struct Rest {
  size_t begin = 0;
  std::string text;
};
// The bytes after the trace itself: a result, or nothing. They are outside of the seal, so that
// judging a trace does not change it.
Rest rest_of(const std::string& path) {
  const InputFile file(path);
  const size_t begin = sealed_bytes(path);
  check(begin <= file.size() && file.size() - begin < kMostResult, "{}: it was cut or changed",
        path);
  return {begin, file_part(file, path, begin, file.size() - begin)};
}

void write_behind_journal(const std::string& path, const std::string& json) {
  const JournalReader journal(path);
  check(journal.problem().empty(), "{}", journal.problem());
  check(journal.saved().ended(), "{}: its run did not end: it can keep no result", path);
  replace_end(path, journal.end(), journal_record(JournalKind::result, json, journal.checksum()));
}

std::string sealed(const std::string& json) {
  return fmt::format(fmt::runtime(kHead), json.size(), hash_of(json.data(), json.size())) + json;
}

void check_whole(bool whole, const std::string& path) {
  check(whole,
        "{}: the result that it keeps was cut or changed, and the trace was not: judge it again "
        "(lockstep judge), which keeps a new one",
        path);
}

// The inverse of sealed(), and "" of "".
std::string unsealed(const std::string& text, const std::string& path) {
  if (text.empty()) return "";
  uint64_t size = 0, hash = 0;
  const size_t line = text.find('\n');
  check_whole(
      line != std::string::npos && std::sscanf(text.c_str(), kResultScan, &size, &hash) == 2, path);
  std::string json = text.substr(line + 1);
  check_whole(json.size() == size && hash_of(json.data(), json.size()) == hash, path);
  return json;
}

std::string result_in_folder(const std::string& path) {
  if (!std::filesystem::exists(file_in(path))) return "";
  std::string json = read_text(file_in(path), kMostResult);
  check_whole(!json.empty(), path);  // readers of the JSON refuse any other part of it
  return json;
}

std::string result_in_journal(const std::string& path) {
  const JournalReader journal(path);
  check_whole(!journal.result_is_damaged(), path);
  return journal.result();
}

}  // namespace

bool can_keep_result(const std::string& path) {
  return std::filesystem::is_directory(path) || is_journal(path) || !is_unsealed(path);
}

void write_kept_result(const std::string& path, const std::string& json) {
  if (std::filesystem::is_directory(path)) return replace_file(file_in(path), json, Durable::yes);
  if (is_journal(path)) return write_behind_journal(path, json);
  replace_end(path, rest_of(path).begin, sealed(json));
}

std::string read_kept_result(const std::string& path) {
  if (std::filesystem::is_directory(path)) return result_in_folder(path);
  if (!can_keep_result(path)) return "";
  return is_journal(path) ? result_in_journal(path) : unsealed(rest_of(path).text, path);
}

}  // namespace lockstep
