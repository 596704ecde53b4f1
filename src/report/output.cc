// Everything that a command prints or writes goes through this file: one table of formats for
// stdout, one for files, and one way to write each. A file replaces what was there only once it is
// whole (kernels/files/disk.h), whereas a pipe or a device takes bytes as they come.
//
// Names of outputs are checked before any work is done. An output must not be an input, nor another
// output, nor a file of the checkpoint, by whatever links it is reached: a run of an hour that ends
// by overwriting its model is worse than a refusal.
#include "src/report/output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/base/check.h"
#include "kernels/files/disk.h"
#include "src/report/render.h"
#include "src/screen/wrap.h"

namespace lockstep {
namespace {

// The formats. To add one: its name and the function that draws a document (render.h).
using Render = std::string (*)(const Document&);
struct Format {
  const char* name;
  Render render;
};
constexpr Format kFormats[] = {
    {"table", render_text},
    {"json", render_json},
    {"csv", render_csv},
};

// The formats that are written to files beside what is printed.
struct FileFormat {
  const char* option;
  std::string ReportOptions::*path;
  std::string (*render)(const Document&);
};
constexpr FileFormat kFileFormats[] = {
    {"--json", &ReportOptions::json, render_json},
    {"--markdown", &ReportOptions::markdown, render_markdown},
    {"--junit", &ReportOptions::junit, render_junit},
    {"--html", &ReportOptions::html, render_html},
};

const Format& format_of(const std::string& name) {
  for (const Format& format : kFormats)
    if (format.name == name) return format;
  fail("--format wants one of {}, found \"{}\"", fmt::join(format_names(), ", "), name);
}

namespace fs = std::filesystem;

// Follows a link to its end, be a file there or not.
fs::path end_of_links(fs::path path) {
  std::error_code ignored;
  // Linux gives up after 40 links too, as a ring of them never ends.
  for (int i = 0; i < 40 && fs::is_symlink(fs::symlink_status(path, ignored)); ++i)
    // A link that is absolute takes the place of the folder, by the rule of operator/.
    path = path.parent_path() / fs::read_symlink(path, ignored);
  return path;
}

// --json /dev/stdout and the like are printed, once, with all else that is printed.
bool is_stdout(const std::string& path) {
  struct stat there {
  }, ours{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(STDOUT_FILENO, &ours) == 0 &&
         there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

// By what is there, else by where the paths lead: a file to be written need not exist.
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

// A pipe or a device takes the bytes; a file in its place would be its end.
bool takes_bytes(const std::string& path) {
  std::error_code ignored;
  return fs::is_other(fs::status(path, ignored));
}

// In place, for pipes and devices, which no new file may replace.
void write_to(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  file.close();
  check(file.good(), "{} cannot be written: {}; name a file in a folder that exists and has room",
        path, std::strerror(errno));
}

// Whether checkpoints are read from files of that name, by us or by others: with a result in its
// place, this one would be another model.
bool is_of_checkpoint(const fs::path& file) {
  static constexpr std::array kNames = {"*.safetensors",
                                        "*.safetensors.index.json",
                                        "*.bin",
                                        "config.json",
                                        "generation_config.json",
                                        "tokenizer*",
                                        "vocab.json",
                                        "merges.txt",
                                        "*_map.json",
                                        "added_tokens.json",
                                        "chat_template*"};
  const std::string name = file.filename().string();
  return std::ranges::any_of(
      kNames, [&](const char* pattern) { return ::fnmatch(pattern, name.c_str(), 0) == 0; });
}

bool is_checkpoint(const std::string& path) { return fs::exists(fs::path(path) / "config.json"); }

// Also where a link leads to a file of the folder, or its files are links themselves.
bool replaces_checkpoint(const std::string& path, const std::string& folder) {
  std::error_code ignored;
  if (lies_in(path, folder) && is_of_checkpoint(end_of_links(path))) return true;
  return std::ranges::any_of(fs::directory_iterator(folder, ignored), [&](const auto& entry) {
    return is_of_checkpoint(entry.path()) && same_file(path, entry.path());
  });
}

// The conclusion alone, for --quiet.
Document last_word_of(Document document) {
  std::erase_if(document.blocks,
                [](const Block& block) { return !std::holds_alternative<Conclusion>(block); });
  return document;
}

// Whether a line that stands there can be erased: a terminal that knows escape sequences, whatever
// it is told of colour.
bool erases(int descriptor) {
  return screen_from(isatty(descriptor) == 1, 0, nullptr, nullptr, std::getenv("TERM")).colour;
}

}  // namespace

void print(const std::string& text) {
  errno = 0;
  const bool whole =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  check(whole, "the result cannot be written to stdout: {}", std::strerror(errno));
}

// A regular file appears whole or not at all.
void write_file(const std::string& path, const std::string& text) {
  if (is_stdout(path)) return print(text);
  if (takes_bytes(path)) return write_to(path, text);
  replace_file(end_of_links(path), text, Durable::no);
}

void check_apart(const NamedFile& written, const std::vector<NamedFile>& others) {
  if (written.path.empty()) return;
  for (const NamedFile& other : others) {
    if (other.path.empty() || other.option == written.option) continue;
    check(!same_file(written.path, other.path),
          "{} and {} were wanted to be two files, found {} for both: name another one for {}",
          written.option, other.option, other.path, written.option);
    if (is_checkpoint(other.path)) {
      check(!replaces_checkpoint(written.path, other.path),
            "{} would make {} a file of the checkpoint {}, which stays as it is: name another file",
            written.option, written.path, other.path);
      continue;
    }
    // A trace may be a folder, and a file in it would be taken for a part of it.
    check(!lies_in(written.path, other.path),
          "{} was wanted outside {}, found {} in the folder {}: name a file elsewhere",
          written.option, other.option, written.path, other.path);
  }
}

// Before the work, which may take an hour, and by trying: a place is good when a new file can be
// made there.
void check_output(const NamedFile& written, const std::vector<NamedFile>& others) {
  check_apart(written, others);
  if (written.path.empty()) return;
  if (takes_bytes(written.path)) return;  // a pipe opens when it is read
  if (std::error_code ignored; fs::is_directory(written.path, ignored)) {
    errno = EISDIR;
    fail_writing(written.path);
  }
  // Made beside the place, as replace_file() will, and removed.
  const NewFile place(end_of_links(written.path));  // gone at once
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

void append_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file << text << std::flush;
  file.close();
  if (!file.good()) fail_writing(path);
}

void check_outputs(const ReportOptions& options, const std::vector<NamedFile>& others,
                   const NamedFile& folder) {
  std::vector<NamedFile> known = others;
  for (const FileFormat& format : kFileFormats) {
    const NamedFile written{format.option, options.*format.path};
    check_output(written, known);
    known.push_back(written);
  }
  check_apart(folder, known);
}

// The files first: a reader of stdout that goes away must not take them with it, nor a full disk
// what can be printed.
void put(const Document& document, const ReportOptions& options) {
  const Format& format = format_of(options.format);
  const bool verdict_alone = options.detail == Detail::verdict;
  // Drawn before a file is written: what cannot be drawn is an Error while nothing has changed.
  const std::string shown = format.render != static_cast<Render>(render_text)
                                ? format.render(document)
                                : render_text(verdict_alone ? last_word_of(document) : document,
                                              screen_of(STDOUT_FILENO));
  try {
    for (const FileFormat& format : kFileFormats)
      if (const std::string& path = options.*format.path; !path.empty())
        write_file(path, format.render(document));
  } catch (const Error&) {
    print(shown);
    throw;
  }
  print(shown);
}

std::string text_of(const Document& document, const std::string& format) {
  return format_of(format).render(document);
}

std::string text_of(const Table& table, const std::string& format) {
  return text_of(Document{.blocks = {table}}, format);
}

Progress::Progress(Detail detail) : on_(detail != Detail::verdict && erases(STDERR_FILENO)) {}

Progress::~Progress() { show(""); }

void Progress::show(const std::string& line) {
  // Back to the first column, the line, and the rest of the terminal's line erased.
  if (!on_) return;
  // A line that is longer than the terminal would not be erased by the next one.
  const size_t width = std::max(screen_of(STDERR_FILENO).width - 1, 1);
  fmt::print(stderr, "\r{}\033[K", wrapped(screen_text(line), width).front());
}

}  // namespace lockstep
