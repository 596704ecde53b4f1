// Names tell tensors apart, as no op has an output and an input of one name.
#include "src/replay/repro_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// The call is borrowed.
class Arguments {
 public:
  explicit Arguments(const CapturedCall& call);

  std::string in_c() const;  // statements that call the function
  const Json& in_python() const { return python_; }

 private:
  int number_of(const std::string& name) const;
  bool is_there(int number) const;
  void tensor(const std::string& name);
  void cache();
  void batch();
  void list(const std::string& name, int count);
  void number(const char* kind, const char* type, double value);
  void add(const std::string& type, const std::string& value) {
    types_ += ", " + type;
    values_ += ", " + value;
  }

  const CapturedCall& call_;
  std::string before_, types_ = "const LockstepCall*", values_ = "&call";
  Json python_ = Json::array();
};

int Arguments::number_of(const std::string& name) const {
  int number = 0;
  for (const auto* all : {&call_.outputs, &call_.inputs})
    for (const CapturedTensor& tensor : *all) {
      if (tensor.name == name) return number;
      ++number;
    }
  fail("{} takes no {}, which a repro wanted to hand it", call_.function, name);
}

bool Arguments::is_there(int number) const {
  const auto outputs = static_cast<int>(call_.outputs.size());
  return number < outputs || !call_.inputs.at(number - outputs).data.view().empty();
}

void Arguments::tensor(const std::string& name) {
  const int number = number_of(name);
  add("const DLTensor*", is_there(number) ? fmt::format("&t[{}]", number) : "NULL");
  python_.push_back({"tensor", number});
}

void Arguments::cache() {
  const int k = number_of("cache.k"), v = number_of("cache.v");
  before_ += fmt::format("    const LockstepCache cache = {{&t[{}], &t[{}]}};\n", k, v);
  add("const LockstepCache*", "&cache");
  python_.push_back({"struct", k, v});
}

void Arguments::batch() {
  const int a = number_of("query_start"), b = number_of("context_length"),
            c = number_of("page_table");
  before_ += fmt::format("    const LockstepBatch batch = {{&t[{}], &t[{}], &t[{}]}};\n", a, b, c);
  add("const LockstepBatch*", "&batch");
  python_.push_back({"struct", a, b, c});
}

void Arguments::list(const std::string& name, int count) {
  std::vector<std::string> all;
  Json numbers = {"list"};
  for (int i = 0; i < count; ++i) {
    const int number = number_of(fmt::format("{}.{}", name, i));
    all.push_back(is_there(number) ? fmt::format("&t[{}]", number) : "NULL");
    numbers.push_back(number);
  }
  before_ += fmt::format("    const DLTensor* {}[] = {{{}}};\n", name, fmt::join(all, ", "));
  add("const DLTensor* const*", name);
  python_.push_back(numbers);
}

void Arguments::number(const char* kind, const char* type, double value) {
  const bool whole = std::string(kind) != "float";
  add(type, whole ? fmt::format("{}", static_cast<int64_t>(value))
                  : fmt::format("{}f", Json(value).dump()));
  python_.push_back({kind, value});
}

Arguments::Arguments(const CapturedCall& call) : call_(call) {
  const std::string& function = call.function;
  if (function == "paged_attention") {
    tensor("out"), tensor("q"), cache(), batch();
    number("float", "float", call.numbers.at(0));
    number("int64", "int64_t", call.numbers.at(1));
  } else if (function == "expert_matmul") {
    const auto experts = static_cast<int>(call.inputs.size()) - 2;
    tensor("out"), tensor("x"), tensor("index"), list("weights", experts);
    number("count", "int64_t", experts);
  } else if (function == "kv_write") {
    cache(), tensor("k"), tensor("v"), tensor("slots");
  } else if (function == "qkv_matmul") {
    tensor("q"), tensor("k"), tensor("v"), tensor("x"), list("weights", 3), list("biases", 3);
  } else if (function == "qk_norm_rope_kv_write") {
    tensor("q_rope"), cache();
    for (const char* name : {"q", "k", "v", "q_weight", "k_weight"}) tensor(name);
    number("float", "float", call.numbers.at(0));
    for (const char* name : {"cos", "sin", "positions", "slots"}) tensor(name);
  } else {
    for (const CapturedTensor& output : call.outputs) tensor(output.name);
    for (const CapturedTensor& one : call.inputs) tensor(one.name);
    if (function == "rms_norm" || function == "add_rms_norm")
      number("float", "float", call.numbers.at(0));
    if (function == "softmax_of") number("int32", "int32_t", call.numbers.at(0));
  }
}

std::string Arguments::in_c() const {
  return before_ +
         fmt::format("    failed = ((const char* (*)({}))function)({});", types_, values_);
}

}  // namespace

std::string call_in_c(const CapturedCall& call) { return Arguments(call).in_c(); }

std::string arguments_in_json(const CapturedCall& call) {
  return Arguments(call).in_python().dump();
}

}  // namespace lockstep
