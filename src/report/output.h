// The doors through which commands print and write.
#pragma once

#include <string>
#include <vector>

#include "src/report/document.h"

namespace lockstep {

// Prints to stdout at once. Throws Error when it cannot be written (a full disk). The text goes out
// byte by byte as it is.
void print(const std::string& text);

// Writes the file whole or not at all: under another name first. A link stays, and what it leads to
// is written; a device, a pipe and what stdout goes to get the text and stay what they are. Throws
// Error when it cannot.
void write_file(const std::string& path, const std::string& text);

// A file and the option or argument that names it; an empty path is none.
struct NamedFile {
  std::string option, path;
};
// Before the work whose result it takes. Throws Error when what will be written (an empty path:
// nothing), a file or a folder, is one of the command's other files, and would take its place, or
// lies in one that is a folder, or is a file of the checkpoint. `others` may have it too: a file of
// the same option is no other one.
void check_apart(const NamedFile& written, const std::vector<NamedFile>& others);
// The same of a file, and throws Error also when none can be written there.
void check_output(const NamedFile& written, const std::vector<NamedFile>& others);

// Writes behind what the file holds; one that is not there begins. Throws Error when it cannot.
// What others append meanwhile stays, each write at the end of the file as it is then.
void append_file(const std::string& path, const std::string& text);

// Names for --format. Markdown and JUnit are for files: put() writes them.
std::vector<std::string> format_names();

// Options of every command that prints a result.
struct ReportOptions {
  std::string format = "table";
  // Paths of files for the result beside what is printed; empty: none.
  std::string json, markdown, junit, html;
  Detail detail = Detail::screen;
};

// check_output() of every file that the options name; others: the command's other files. folder:
// one that the command makes, which is apart from all of them.
void check_outputs(const ReportOptions& options, const std::vector<NamedFile>& others,
                   const NamedFile& folder = {});

// Prints a document as --format says and writes --json, --markdown, --junit and --html. What
// programs read is whole in any detail.
void put(const Document& document, const ReportOptions& options);

// The document in a format of format_names(). Only the table shortens numbers, and numbers that are
// not finite are NaN, Infinity and -Infinity in the others.
std::string text_of(const Document& document, const std::string& format);
std::string text_of(const Table& table, const std::string& format);

// One line on stderr that says how far the work is; silent unless that is a terminal, and where
// the verdict alone is wanted. For one thread.
class Progress {
 public:
  explicit Progress(Detail detail = Detail::screen);
  ~Progress();  // leaves no line behind
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const std::string& line);

 private:
  bool on_;
};

}  // namespace lockstep
