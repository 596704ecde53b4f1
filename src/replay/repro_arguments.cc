// Each argument is a variable of the program in C, or a number, and an entry of a list in JSON.
#include "src/replay/repro_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// Operands of a call are numbered from its outputs on.
class Arguments {
 public:
  explicit Arguments(const CapturedCall& call);

  std::string in_c() const {
    return before_ +
           fmt::format("    failed = ((const char* (*)({}))function)({});", types_, values_);
  }
  const Json& in_python() const { return python_; }

 private:
  void tensor(size_t number);
  void structure(const char* name, const char* type, size_t first, size_t count);
  void list(size_t first, size_t count);
  void number(const char* kind, double value);
  // "&t[3]", or "NULL" for one that the op is called without.
  std::string in_c(size_t number) const;
  void add(const std::string& type, const std::string& value) {
    types_ += ", " + type;
    values_ += ", " + value;
  }

  const CapturedCall& call_;
  int lists_ = 0;
  std::string before_, types_ = "const LockstepCall*", values_ = "&call";
  Json python_ = Json::array();
};

std::string Arguments::in_c(size_t number) const {
  const size_t outputs = call_.outputs.size();
  const bool there = number < outputs || !call_.inputs.at(number - outputs).data.view().empty();
  return there ? fmt::format("&t[{}]", number) : "NULL";
}

void Arguments::tensor(size_t number) {
  add("const DLTensor*", in_c(number));
  python_.push_back({"tensor", number});
}

void Arguments::structure(const char* name, const char* type, size_t first, size_t count) {
  std::vector<std::string> all;
  Json numbers = {"struct"};
  for (size_t i = first; i < first + count; ++i) all.push_back(in_c(i)), numbers.push_back(i);
  before_ += fmt::format("    const {} {} = {{{}}};\n", type, name, fmt::join(all, ", "));
  add(fmt::format("const {}*", type), fmt::format("&{}", name));
  python_.push_back(numbers);
}

void Arguments::list(size_t first, size_t count) {
  std::vector<std::string> all;
  Json numbers = {"list"};
  for (size_t i = first; i < first + count; ++i) all.push_back(in_c(i)), numbers.push_back(i);
  const std::string name = fmt::format("list{}", lists_++);
  before_ += fmt::format("    const DLTensor* const {}[] = {{{}}};\n", name, fmt::join(all, ", "));
  add("const DLTensor* const*", name);
  python_.push_back(numbers);
}

void Arguments::number(const char* kind, double value) {
  const bool whole = std::string(kind) != "float";
  const bool narrow = std::string(kind) == "int32";
  add(whole ? narrow ? "int32_t" : "int64_t" : "float",
      whole ? fmt::format("{}", static_cast<int64_t>(value))
            : fmt::format("{}f", Json(value).dump()));
  python_.push_back({kind, value});
}

Arguments::Arguments(const CapturedCall& call) : call_(call) {
  using Type = CapturedCall::Argument::Type;
  const size_t outputs = call.outputs.size();
  for (size_t i = 0; i < outputs; ++i) {
    if (call.outputs[i].name == "cache.k")
      structure("cache", "LockstepCache", i++, 2);
    else
      tensor(i);
  }
  for (const CapturedCall::Argument& a : call.arguments) {
    const size_t first = outputs + a.first;
    if (a.type == Type::tensor) tensor(first);
    if (a.type == Type::cache) structure("cache", "LockstepCache", first, a.count);
    if (a.type == Type::batch) structure("batch", "LockstepBatch", first, a.count);
    if (a.type == Type::list || a.type == Type::counted) list(first, a.count);
    if (a.type == Type::counted) number("count", static_cast<double>(a.count));
    if (a.type == Type::float32) number("float", a.number);
    if (a.type == Type::int64) number("int64", a.number);
    if (a.type == Type::int32) number("int32", a.number);
  }
}

}  // namespace

std::string call_in_c(const CapturedCall& call) { return Arguments(call).in_c(); }

std::string arguments_in_json(const CapturedCall& call) {
  return Arguments(call).in_python().dump();
}

}  // namespace lockstep
