// What commands print and write.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "src/diff/diff.h"
#include "src/judge/verdict.h"

namespace lockstep {

// Prints to stdout at once. Throws Error when it cannot be written (a full disk).
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
// nothing) is one of the command's other files, and would take its place, or when no file can be
// written there.
void check_output(const NamedFile& written, const std::vector<NamedFile>& others);

// Names for --format.
std::vector<std::string> format_names();

// Of everything that prints a result.
struct ReportOptions {
  std::string format = "table";
  std::string json;  // path of a file for the result as JSON, beside what is printed
};

// Prints a judgement, or a difference of two traces, as --format says and writes --json.
void put_result(const Result& result, const ReportOptions& options);
void put_result(const DiffResult& result, const ReportOptions& options);

// A result that is a table: columns by name, cells as text or numbers.
using Cell = std::variant<std::string, int64_t, double>;
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;
  const char* number_format = "{:.4g}";  // of fractions, when people read them
};
// In a format of format_names(). JSON is a list of objects, with NaN and Infinity as
// strings; only the table shortens numbers.
std::string text_of(const Table& table, const std::string& format);

// One line on stderr that says how far the work is; silent unless that is a terminal.
class Progress {
 public:
  Progress();
  ~Progress();  // leaves no line behind
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const std::string& line);

 private:
  bool on_;
};

}  // namespace lockstep
