// Writes a folder that shows one wrong op without Lockstep: the arguments of the call, what a right
// op makes of them, and programs in C and Python that call the kernel and compare.
//
//   CapturedCall -> Kept, a tensor each: rows and columns that matter -> packed -> case.safetensors
//                -> the arguments (repro_arguments.h) -> a table in C, JSON in Python
//
// What the elements in question do not depend on, in any right op, is left out: rows of a weight
// that make other outputs, columns that meet a zero, tables' rows that no index names. Left-out
// memory is filled by the programs, with 0, or in a cache with a byte that is NaN in every float
// dtype, so that a kernel that reads there shows it.
#include "src/replay/repro_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "kernels/base/check.h"
#include "src/replay/repro_arguments.h"
#include "src/replay/repro_programs.h"
#include "src/report/output.h"
#include "src/weights/safetensors_writer.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// Slots of a cache that nobody filled hold this byte, all else that is left out 0.
constexpr uint8_t kPoison = 0xFF;

// The part of a tensor that is written: some rows and columns of it as a matrix.
struct Kept {
  const CapturedCall::Operand* tensor;
  uint8_t fill = 0;
  std::vector<int32_t> rows, columns;
  std::vector<int32_t> zeros;  // rows that are 0, where that is not what fills the rest
  bool all_rows = true, all_columns = true;
};

// The last axis, along which rows are contiguous.
int64_t width_of(const TensorView& tensor) {
  return tensor.shape.rank() > 0 ? tensor.shape.last() : 1;
}

bool is_filled(const char* begin, int64_t bytes, uint8_t fill) {
  return std::all_of(begin, begin + bytes,
                     [fill](char c) { return static_cast<uint8_t>(c) == fill; });
}

std::vector<int32_t> numbers_below(int64_t count) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A tensor with the rows that hold anything but its fill. Rows of zeros in a cache are named apart,
// since NaN fills what is left out there.
Kept kept_of(const CapturedCall::Operand& tensor) {
  Kept kept{&tensor};
  const TensorView& view = tensor.data;
  if (view.empty()) return kept;
  kept.fill = tensor.name.starts_with("cache.") ? kPoison : 0;
  const int64_t width = width_of(view), rows = width == 0 ? 0 : view.count() / width;
  const int64_t bytes = width * size_of(view.dtype);
  for (int64_t r = 0; r < rows; ++r)
    if (const char* row = view.as<const char>() + r * bytes; !is_filled(row, bytes, kept.fill))
      (is_filled(row, bytes, 0) ? kept.zeros : kept.rows).push_back(static_cast<int32_t>(r));
  kept.all_rows = std::ssize(kept.rows) == rows;
  kept.columns = numbers_below(width);
  return kept;
}

// An output, of which nothing is written.
Kept empty_like(const CapturedCall::Operand& tensor) {
  Kept kept{&tensor};
  kept.fill = tensor.name.starts_with("cache.") ? kPoison : 0;
  return kept;
}

// Columns of a matrix in which some row is not 0.
std::vector<int32_t> nonzero_columns(const TensorView& x) {
  const int64_t width = width_of(x);
  std::vector<bool> some(static_cast<size_t>(width));
  for (int64_t i = 0; i < x.count(); ++i)
    if (value_at(x, i) != 0) some[i % width] = true;
  std::vector<int32_t> columns;
  for (int64_t c = 0; c < width; ++c)
    if (some[c]) columns.push_back(static_cast<int32_t>(c));
  return columns;
}

const CapturedCall::Operand* input(const CapturedCall& call, const std::string& name) {
  const auto found = std::ranges::find(call.inputs, name, &CapturedCall::Operand::name);
  return found == call.inputs.end() || found->data.view().empty() ? nullptr : &*found;
}

void narrow_to(std::vector<int32_t>& rows, const std::set<int32_t>& some) {
  std::erase_if(rows, [&](int32_t row) { return !some.contains(row); });
}

// Columns of the output of that number which elements are in.
std::set<int32_t> columns_of(const CapturedCall& call, const ReproElements& elements,
                             size_t output) {
  const int64_t width = width_of(call.outputs.at(output).data);
  std::set<int32_t> columns;
  for (size_t i = 0; i < elements.index.size(); ++i)
    if (static_cast<size_t>(elements.output[i]) == output)
      columns.insert(static_cast<int32_t>(elements.index[i] % width));
  return columns;
}

std::set<int32_t> numbers_in(const CapturedCall::Operand& tensor) {
  std::set<int32_t> all;
  for (int64_t i = 0; i < tensor.data.view().count(); ++i)
    all.insert(static_cast<int32_t>(value_at(tensor.data, i)));
  return all;
}

// Leaves out what the elements do not depend on, in any right op.
void leave_out(const CapturedCall& call, const ReproElements& elements, std::vector<Kept>& parts) {
  const CapturedCall::Operand *index = input(call, "index"), *positions = input(call, "positions");
  const bool experts = call.function == "expert_matmul";
  for (Kept& part : parts) {
    const std::string& name = part.tensor->name;
    if (part.tensor->is_weight) {
      const auto number = name.starts_with("weights.") ? std::stoul(name.substr(8)) : 0;
      narrow_to(part.rows, columns_of(call, elements, experts ? 0 : number));
      part.all_rows = false;
      part.columns = nonzero_columns(input(call, "x")->data);
      part.all_columns = std::ssize(part.columns) == width_of(part.tensor->data);
      if (experts && !numbers_in(*index).contains(static_cast<int32_t>(number))) part.rows.clear();
    } else if (name == "table" && index != nullptr) {
      narrow_to(part.rows, numbers_in(*index));
      part.all_rows = false;
    } else if ((name == "cos" || name == "sin") && positions != nullptr) {
      narrow_to(part.rows, numbers_in(*positions));
      part.all_rows = false;
    }
  }
}

// The kept rows and columns as one dense matrix.
Tensor packed(const Kept& part) {
  const TensorView& whole = part.tensor->data;
  const int64_t bytes = size_of(whole.dtype), width = width_of(whole);
  Tensor block({std::ssize(part.rows), std::ssize(part.columns)}, whole.dtype);
  char* to = block.as<char>();
  for (const int32_t row : part.rows)
    for (const int32_t column : part.columns)
      to = std::copy_n(whole.as<const char>() + (row * width + column) * bytes, bytes, to);
  return block;
}

Tensor numbers_of(const std::vector<int32_t>& values) {
  return tensor_of<int32_t>(values, {std::ssize(values)}, DType::i32);
}

// A tensor's dtype as safetensors and DLPack have it.
struct Names {
  const char* in_file;
  int code;
};
Names names_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {"F32", 2};
    case DType::f16:
      return {"F16", 2};
    case DType::bf16:
      return {"BF16", 4};
    case DType::i32:
      return {"I32", 0};
    case DType::i64:
      return {"I64", 0};
    default:
      fail("an op with a tensor of {} cannot be written as a repro", name_of(dtype));
  }
}

// The contents of the folder, made from one call. The file comes first, as the C program needs the
// offsets of the tensors in it.
class Folder {
 public:
  Folder(const CapturedCall& call, const ReproElements& elements)
      : call_(call), elements_(elements) {}

  void pack();
  const std::string& file() const { return file_; }
  std::string table_in_c() const;

 private:
  void add(const std::string& name, Tensor tensor);
  void add(const std::string& name, const std::vector<double>& values);
  std::string part_in_c(const Kept& part) const;
  Json part_in_python(const Kept& part) const;
  std::string metadata() const;

  const CapturedCall& call_;
  const ReproElements& elements_;
  std::vector<Kept> parts_;
  std::deque<Tensor> held_;
  std::vector<NamedTensor> tensors_;
  std::map<std::string, size_t> offsets_;
  std::string file_;
};

// Arguments of an op and the elements share the names of one file, and a file with a name twice is
// read by whichever of both comes last.
void Folder::add(const std::string& name, Tensor tensor) {
  check(std::ranges::count(tensors_, name, &NamedTensor::name) == 0,
        "inputs.safetensors of {} would have {} twice: report this as a bug of Lockstep",
        call_.function, name);
  tensors_.push_back({name, held_.emplace_back(std::move(tensor))});
}

void Folder::add(const std::string& name, const std::vector<double>& values) {
  add(name, tensor_of<double>(values, {std::ssize(values)}, DType::f64));
}

void Folder::pack() {
  for (const CapturedCall::Operand& tensor : call_.outputs) parts_.push_back(empty_like(tensor));
  for (const CapturedCall::Operand& tensor : call_.inputs) parts_.push_back(kept_of(tensor));
  leave_out(call_, elements_, parts_);
  for (const Kept& part : parts_) {
    const std::string& name = part.tensor->name;
    if (!part.zeros.empty()) add(name + ".zeros", numbers_of(part.zeros));
    if (part.tensor->data.view().empty() || part.rows.empty()) continue;
    add(name, packed(part));
    if (!part.all_rows) add(name + ".rows", numbers_of(part.rows));
    if (!part.all_columns) add(name + ".columns", numbers_of(part.columns));
  }
  add("elements.output", numbers_of(elements_.output));
  add("elements.index",
      tensor_of<int64_t>(elements_.index, {std::ssize(elements_.index)}, DType::i64));
  add("elements.want", elements_.want);
  add("elements.limit", elements_.limit);
  add("elements.got", elements_.got);
  file_ = safetensors_of(tensors_, {{"call", metadata()}}, offsets_);
}

Json Folder::part_in_python(const Kept& part) const {
  const TensorView& view = part.tensor->data;
  if (view.empty())
    return {
        {"name", part.tensor->name}, {"dtype", "F32"}, {"shape", Json::array()}, {"fill", nullptr}};
  return {{"name", part.tensor->name},
          {"dtype", names_of(view.dtype).in_file},
          {"shape", std::vector<int64_t>(view.shape.extents().begin(), view.shape.extents().end())},
          {"fill", part.fill}};
}

std::string Folder::metadata() const {
  Json tensors = Json::array();
  for (const Kept& part : parts_) tensors.push_back(part_in_python(part));
  return Json{{"function", call_.function},
              {"point", call_.point},
              {"layer", call_.layer},
              {"tensors", tensors},
              {"outputs", call_.outputs.size()},
              {"arguments", Json::parse(arguments_in_json(call_))}}
      .dump();
}

std::string Folder::part_in_c(const Kept& part) const {
  const TensorView& view = part.tensor->data;
  if (view.empty()) return "{0}";
  const auto extents = view.shape.extents();
  const auto at = [&](const std::string& end) {
    const auto found = offsets_.find(part.tensor->name + end);
    return found == offsets_.end() ? int64_t{-1} : static_cast<int64_t>(found->second);
  };
  const bool none = part.rows.empty();
  return fmt::format("{{\"{}\", {}, {}, {}, {}, {{{}}}, {}, {}, {}, {}, {}, {}, {}}}",
                     part.tensor->name, names_of(view.dtype).code, 8 * size_of(view.dtype),
                     part.fill, view.shape.rank(), fmt::join(extents, ", "), none ? 0 : at(""),
                     none ? -1 : at(".rows"), none ? 0 : std::ssize(part.rows),
                     none ? -1 : at(".columns"), none ? 0 : std::ssize(part.columns), at(".zeros"),
                     std::ssize(part.zeros));
}

std::string Folder::table_in_c() const {
  std::string text = fmt::format("enum {{ TENSORS = {}, ELEMENTS = {} }};\n", parts_.size(),
                                 elements_.index.size());
  text += fmt::format(
      "enum {{ OUTPUT_AT = {}, INDEX_AT = {}, WANT_AT = {}, LIMIT_AT = {}, GOT_AT = {} }};\n",
      offsets_.at("elements.output"), offsets_.at("elements.index"), offsets_.at("elements.want"),
      offsets_.at("elements.limit"), offsets_.at("elements.got"));
  text += "/* Outputs come first. */\nstatic const Part PARTS[] = {\n";
  for (const Kept& part : parts_) text += fmt::format("    {},\n", part_in_c(part));
  return text + "};\n";
}

std::string filled_in(std::string text,
                      const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [name, value] : values)
    for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + value.size()))
      text.replace(at, name.size(), value);
  return text;
}

std::string readme_of(const CapturedCall& call, const ReproStory& story) {
  return fmt::format(
      "# {}\n\n{}\n\n"
      "    cc repro.c -o repro -ldl -lm && ./repro LIB.so     # or: python3 repro.py "
      "LIB.so|mine.py\n"
      "\n"
      "calls `lockstep_{}` on `inputs.safetensors` and prints the worst element; without LIB, what "
      "was stored.\n"
      "There, `elements.want` is the exact result in fp64, `elements.limit` the most that a right "
      "op may be off,\n"
      "`elements.index` where they are in the output. Exit status: 0 right, 1 wrong, 2 trouble.\n",
      story.title, fmt::join(story.lines, "\n"), call.function);
}

std::string part_of(const std::string& folder) {
  return folder.substr(0, folder.find_last_not_of('/') + 1) + ".part";
}

// Writes the files beside, as FOLDER.part, and gives them their name when all are whole.
void put_folder(const std::string& folder,
                const std::vector<std::pair<std::string, std::string>>& files) {
  namespace fs = std::filesystem;
  const std::string part = part_of(folder);
  std::error_code failed, ignored;
  fs::create_directories(part, failed);
  check(!failed, "{} cannot be made ({}): name another folder with --out", folder,
        failed.message());
  try {
    for (const auto& [name, text] : files) write_file(part + "/" + name, text);
    fs::rename(part, folder, failed);
    check(!failed, "{} cannot be made ({}): name another folder with --out", folder,
          failed.message());
  } catch (const Error&) {
    fs::remove_all(part, ignored);
    throw;
  }
}

}  // namespace

void check_repro_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::file_status found = fs::symlink_status(folder, failed);
  check(found.type() != fs::file_type::none,
        "{} cannot be made ({}): name another folder with --out", folder, failed.message());
  check(!fs::exists(found) || (fs::is_directory(found) && fs::is_empty(folder, failed)),
        "{} is there already: name a new folder with --out", folder);
  const std::string part = part_of(folder);
  check(!fs::exists(fs::symlink_status(part, failed)),
        "{} is there already, and is where {} would be made: remove it, or name another folder "
        "with --out",
        part, folder);
  fs::path above = fs::absolute(part).parent_path();
  while (!fs::exists(fs::status(above, failed)) && above.has_relative_path())
    above = above.parent_path();
  check(fs::is_directory(above, failed),
        "{} cannot be made, for {} is no folder: name another one "
        "with --out",
        folder, above.string());
  check(access(above.c_str(), W_OK | X_OK) == 0,
        "{} cannot be made, for {} cannot be written to: name another folder with --out", folder,
        above.string());
}

int64_t write_repro(const std::string& folder, const CapturedCall& call,
                    const ReproElements& elements, const ReproStory& story) {
  check_repro_folder(folder);
  Folder made(call, elements);
  made.pack();
  const std::string in_c =
      filled_in(std::string(kReproInC), {{"@TABLE@", made.table_in_c()},
                                         {"@CALL@", call_in_c(call)},
                                         {"@FUNCTION@", call.function},
                                         {"@POINT@", call.point},
                                         {"@LAYER@", fmt::format("{}", call.layer)}});
  const std::string readme = readme_of(call, story);
  put_folder(folder, {{"inputs.safetensors", made.file()},
                      {"repro.c", in_c},
                      {"repro.py", std::string(kReproInPython)},
                      {"README.md", readme}});
  return static_cast<int64_t>(made.file().size() + in_c.size() + kReproInPython.size() +
                              readme.size());
}

}  // namespace lockstep
