#include "src/report/output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "src/report/report.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::string table_text(const Table& table);
std::string table_json(const Table& table);
std::string table_csv(const Table& table);

// The formats. To add one: its name, and how it writes a judgement, a difference and a table.
struct Format {
  const char* name;
  std::string (*of_result)(const Result&);
  std::string (*of_diff)(const DiffResult&);
  std::string (*of_table)(const Table&);
};
constexpr Format kFormats[] = {
    {"table", report_table, report_table, table_text},
    {"json", report_json, report_json, table_json},
    {"csv", report_csv, report_csv, table_csv},
};

const Format& format_of(const std::string& name) {
  for (const Format& format : kFormats)
    if (format.name == name) return format;
  fail("--format wants one of {}, found \"{}\"", fmt::join(format_names(), ", "), name);
}

std::string shown(const Cell& cell, const char* number_format) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* whole = std::get_if<int64_t>(&cell)) return std::to_string(*whole);
  return fmt::format(fmt::runtime(number_format), std::get<double>(cell));
}

std::string table_text(const Table& table) {
  std::vector<std::vector<std::string>> lines{table.columns};
  for (const auto& row : table.rows) {
    auto& line = lines.emplace_back();
    for (const Cell& cell : row) line.push_back(shown(cell, table.number_format));
  }
  std::vector<size_t> widths(table.columns.size());
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const auto& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      const bool number = std::ranges::any_of(table.rows, [i](const auto& row) {
        return !std::holds_alternative<std::string>(row[i]);
      });
      text += fmt::format(fmt::runtime(number ? "{:>{}}  " : "{:<{}}  "), line[i], widths[i]);
    }
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

Json json_of(const Cell& cell) {
  if (const auto* number = std::get_if<double>(&cell)) return json_number<Json>(*number);
  return std::visit([](const auto& value) { return Json(value); }, cell);
}

std::string table_json(const Table& table) {
  Json list = Json::array();
  for (const auto& row : table.rows) {
    Json object;
    for (size_t i = 0; i < row.size(); ++i) object[table.columns[i]] = json_of(row[i]);
    list.push_back(std::move(object));
  }
  return list.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string table_csv(const Table& table) {
  const auto join = [](const auto& fields) { return fmt::format("{}\n", fmt::join(fields, ",")); };
  std::string out = join(table.columns);
  for (const auto& row : table.rows) {
    std::vector<std::string> fields;
    for (const Cell& cell : row) fields.push_back(csv_field(shown(cell, "{}")));
    out += join(fields);
  }
  return out;
}

namespace fs = std::filesystem;

constexpr char kCannotWrite[] =
    "{} cannot be written: {}; name a file in a folder that exists and has room";

// Where a link leads, be a file there or not.
fs::path end_of_links(fs::path path) {
  std::error_code ignored;
  for (int i = 0; i < 40 && fs::is_symlink(fs::symlink_status(path, ignored)); ++i)
    path = path.parent_path() / fs::read_symlink(path, ignored);
  return path;
}

bool is_stdout(const std::string& path) {
  struct stat there {
  }, ours{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(STDOUT_FILENO, &ours) == 0 &&
         there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  if (fs::is_other(fs::status(a, ignored))) return false;  // a terminal may be read and written
  return fs::equivalent(a, b, ignored) ||
         fs::weakly_canonical(fs::absolute(end_of_links(a), ignored), ignored) ==
             fs::weakly_canonical(fs::absolute(end_of_links(b), ignored), ignored);
}

// Also where a trace is a folder of files.
bool lies_in(const std::string& path, const std::string& folder) {
  std::error_code ignored;
  const fs::path way = fs::relative(end_of_links(path), folder, ignored);
  return fs::is_directory(folder, ignored) && !way.empty() && *way.begin() != "..";
}

// What went wrong; empty when nothing did.
std::string write_to(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  file.close();
  return file.good() ? "" : std::strerror(errno);
}

// What a file is written to first, so that it is whole or not there.
std::string part_of(const fs::path& path) { return path.string() + ".part"; }

std::string replace_file(const fs::path& path, const std::string& text) {
  const std::string part = part_of(path);
  std::string cause = write_to(part, text);
  std::error_code error;
  if (cause.empty()) {
    fs::rename(part, path, error);
    if (!error) return "";
    cause = error.message();
  }
  fs::remove(part, error);
  return cause;
}

}  // namespace

void print(const std::string& text) {
  errno = 0;
  const bool whole =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  check(whole, "the result cannot be written to stdout: {}", std::strerror(errno));
}

void write_file(const std::string& path, const std::string& text) {
  if (is_stdout(path)) return print(text);
  std::error_code ignored;
  // A pipe or a device takes the bytes; a file in its place would be its end.
  const fs::file_status there = fs::status(path, ignored);
  const bool takes = fs::exists(there) && !fs::is_regular_file(there);
  const std::string cause = takes ? write_to(path, text) : replace_file(end_of_links(path), text);
  check(cause.empty(), kCannotWrite, path, cause);
}

void check_output(const NamedFile& written, const std::vector<NamedFile>& others) {
  if (written.path.empty()) return;
  for (const NamedFile& other : others) {
    if (other.path.empty()) continue;
    check(!same_file(written.path, other.path),
          "{} and {} were wanted to be two files, found {} for both: name another one for {}",
          written.option, other.option, other.path, written.option);
    check(!lies_in(written.path, other.path),
          "{} was wanted outside {}, found {} in the folder {}: name a file elsewhere",
          written.option, other.option, written.path, other.path);
  }
  std::error_code ignored;
  if (fs::is_other(fs::status(written.path, ignored))) return;  // a pipe opens when it is read
  const std::string part = part_of(end_of_links(written.path));
  const std::string cause =
      fs::is_directory(written.path, ignored) ? std::strerror(EISDIR) : write_to(part, "");
  check(cause.empty(), kCannotWrite, written.path, cause);
  fs::remove(part, ignored);
}

namespace {

// The file first: a reader of stdout that goes away must not take the file with it, nor a full disk
// what can be printed.
void put(const std::string& json, const std::string& shown, const ReportOptions& options) {
  try {
    if (!options.json.empty()) write_file(options.json, json);
  } catch (const Error&) {
    print(shown);
    throw;
  }
  print(shown);
}

}  // namespace

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

void put_result(const Result& result, const ReportOptions& options) {
  put(options.json.empty() ? "" : report_json(result), format_of(options.format).of_result(result),
      options);
}

void put_result(const DiffResult& result, const ReportOptions& options) {
  put(options.json.empty() ? "" : report_json(result), format_of(options.format).of_diff(result),
      options);
}

std::string text_of(const Table& table, const std::string& format) {
  return format_of(format).of_table(table);
}

Progress::Progress() : on_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { show(""); }

void Progress::show(const std::string& line) {
  // Back to the first column, the line, and the rest of the terminal's line erased.
  if (on_) fmt::print(stderr, "\r{}\033[K", line);
}

}  // namespace lockstep
