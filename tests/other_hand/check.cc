// Measures every kernel of the other hand against exact arithmetic, in ulp: that the right ones are
// right, that the wrong ones are wrong, and by how much. No judge and no op of Lockstep takes part.
//
//   other_hand_check            a table; exit 1 when a kernel is not what it says
//   other_hand_check --measure  the numbers for least_ulp alone, by name
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "tests/other_hand/cases.h"
#include "tests/other_hand/kernels.h"

namespace lockstep::other_hand {
namespace {

constexpr double kNoNumber = 1e9;  // of NaN and of Inf

struct Measured {
  double off = 0;      // in ulp beyond half of one
  double beyond = 0;   // and beyond what the contract allows
  double hardest = 0;  // and beyond what any contract of the op allows
  double share = 0;    // of half an ulp and the contract's allowance
  std::string trouble;
};

void raise(double& worst, double by) {
  if (std::isnan(by) || by > kNoNumber) by = kNoNumber;
  worst = std::max(worst, by);
}

// What an element may be off under the kernel's contract, and under the most lenient one.
struct Slack {
  double own = 0, most = 0;
};

Slack slack_of(const OtherKernel& kernel, const Case& made, size_t i) {
  Slack slack;
  std::string contract = kernel.rounding;
  // These make their own tables, which the op's contract hands in: see rope.cc.
  if (std::string(kernel.name) == "rope-own-angles-fp32") contract = "own angles";
  if (std::string(kernel.name) == "rope-own-angles-fp64") contract = "own angles in fp64";
  for (const auto& [name, all] : made.slack) {
    if (name == contract) slack.own = all[i];
    if (name == "hf" || name == "eager" || name == "fused" || name == "bias_after_store")
      slack.most = std::max(slack.most, all[i]);
  }
  return slack;
}

void compare(const OtherKernel& kernel, const Case& made, const std::vector<double>& got,
             Measured& measured) {
  if (made.unit == Unit::indices) {
    double wrong = 0;
    if (made.wrong_indices) {
      wrong = made.wrong_indices(got);
    } else {
      for (size_t i = 0; i < got.size(); ++i) wrong += got[i] == made.exact[i] ? 0 : 1;
    }
    for (double* worst : {&measured.off, &measured.beyond, &measured.hardest}) raise(*worst, wrong);
    return;
  }
  for (size_t i = 0; i < got.size(); ++i) {
    const double exact = made.exact[i];
    if (made.unit == Unit::exact) {
      const double right = nearest(exact, made.kind);
      const double off = got[i] == right ? 0 : std::fabs(got[i] - right) / ulp(right, made.kind);
      for (double* worst : {&measured.off, &measured.beyond, &measured.hardest}) raise(*worst, off);
      continue;
    }
    const double half = ulp(exact, made.kind) / 2, off = std::fabs(got[i] - exact) - half;
    const Slack slack = slack_of(kernel, made, i);
    double size = std::fabs(exact);
    if (!kernel.right && !made.typical.empty()) size = std::max(size, made.typical[i]);
    const double step = ulp(size, made.kind);
    raise(measured.off, off / step);
    raise(measured.share, (off + half) / (half + slack.own));
    raise(measured.beyond, (off - slack.own) / step);
    raise(measured.hardest, (off - std::max(slack.own, slack.most)) / step);
  }
}

void measure(const OtherKernel& kernel, const Case& made, Measured& measured) {
  for (const auto& output : made.outputs) output->clear();
  if (const char* said = made.run(kernel.function, !kernel.right)) measured.trouble = said;
  std::vector<double> got;
  for (const auto& output : made.outputs) {
    const std::vector<double> values = output->values();
    got.insert(got.end(), values.begin(), values.end());
    if (!output->guards_are_whole()) measured.trouble = "wrote beside its output";
  }
  for (const auto& input : made.inputs)
    if (!input->is_unchanged()) measured.trouble = "wrote into an input";
  compare(kernel, made, got, measured);
}

using MakeCases = std::vector<Case>(Kind kind);

const std::map<std::string, MakeCases*>& all_makers() {
  static const std::map<std::string, MakeCases*> makers = {
      {"lockstep_gather_rows", gather_cases},
      {"lockstep_rms_norm", norm_cases},
      {"lockstep_matmul", product_cases},
      {"lockstep_rope", rope_cases},
      {"lockstep_kv_write", kv_write_cases},
      {"lockstep_kv_gather", kv_gather_cases},
      {"lockstep_paged_attention", attention_cases},
      {"lockstep_silu_mul", silu_cases},
      {"lockstep_add", add_cases},
      {"lockstep_argmax", argmax_cases},
      {"lockstep_top_k", top_k_cases},
      {"lockstep_softmax_of", router_cases},
      {"lockstep_expert_matmul", expert_cases},
      {"lockstep_weighted_sum", combine_cases}};
  return makers;
}

const std::vector<Case>& cases_of(const std::string& symbol, Kind kind) {
  static std::map<std::pair<std::string, Kind>, std::vector<Case>> made;
  const auto key = std::make_pair(symbol, kind);
  if (!made.contains(key)) made[key] = all_makers().at(symbol)(kind);
  return made[key];
}

struct Dtype {
  const char* name;
  Kind kind;
};
constexpr Dtype kDtypes[] = {{"bf16", Kind::bf16}, {"fp16", Kind::fp16}, {"fp32", Kind::fp32}};

// What is wrong with a row of the table, or "".
std::string trouble_of(const OtherKernel& kernel, const std::map<std::string, Measured>& by_dtype) {
  for (const auto& [dtype, measured] : by_dtype) {
    if (!measured.trouble.empty()) return dtype + ": " + measured.trouble;
    if (kernel.right && measured.beyond > 0) return "it is not right in " + dtype;
    if (!kernel.right && measured.beyond <= 0) return "it makes no difference in " + dtype;
  }
  if (kernel.right) return "";
  const std::string first = by_dtype.contains("bf16") ? "bf16" : by_dtype.begin()->first;
  if (first == "bf16" && by_dtype.at(first).hardest <= 0 &&
      std::strcmp(kernel.rounding, "fused") == 0 &&
      std::strstr(kernel.needs, "held to fused") == nullptr)
    return "another contract allows as much: its needs do not say so";
  const double ratio = by_dtype.at(first).beyond / kernel.least_ulp;
  if (ratio < 0.8 || ratio > 1.25) return "least_ulp is not what was measured";
  return "";
}

void print_row(const OtherKernel& kernel, const std::map<std::string, Measured>& by_dtype) {
  std::printf("%-34s %-5s %-16s", kernel.name, kernel.right ? "right" : "WRONG", kernel.rounding);
  for (const Dtype& dtype : kDtypes) {
    const auto found = by_dtype.find(dtype.name);
    if (found == by_dtype.end()) {
      std::printf(" %27s", "-");
    } else {
      const Measured& measured = found->second;
      std::printf(" %9.3g%9.3g%9.3g", measured.off, measured.beyond,
                  kernel.right ? measured.share : measured.hardest);
    }
  }
  std::printf("  %s\n", kernel.says);
}

std::map<std::string, Measured> measured_by_dtype(const OtherKernel& kernel) {
  std::map<std::string, Measured> by_dtype;
  const std::string symbol = kernel.symbol;
  for (const Dtype& dtype : kDtypes) {
    if (std::strstr(kernel.dtypes, dtype.name) == nullptr) continue;
    Measured& measured = by_dtype[dtype.name];
    for (const Case& made : cases_of(symbol, dtype.kind))
      if (kernel.right || !made.is_adversarial) measure(kernel, made, measured);
  }
  return by_dtype;
}

int check(bool measure_only) {
  std::set<std::string> names;
  std::map<std::string, std::array<int, 2>> counts;
  int troubles = 0;
  if (const std::string trouble = trouble_with_numbers(); !trouble.empty()) {
    std::printf("%s\n", trouble.c_str());
    return 1;
  }
  if (!measure_only)
    std::printf(
        "worst error in ulp: beyond correct rounding, beyond the contract's allowance, "
        "beyond that of any contract\n%-34s %-5s %-16s %27s %27s %27s\n",
        "kernel", "", "contract", "bf16", "fp16", "fp32");
  for (const OtherKernel& kernel : other_kernels()) {
    const auto by_dtype = measured_by_dtype(kernel);
    if (measure_only) {
      const auto first = by_dtype.contains("bf16") ? by_dtype.find("bf16") : by_dtype.begin();
      if (!kernel.right) std::printf("%s %.3g\n", kernel.name, first->second.beyond);
      continue;
    }
    print_row(kernel, by_dtype);
    std::string trouble = trouble_of(kernel, by_dtype);
    if (!names.insert(kernel.name).second) trouble = "another one has its name";
    if (!trouble.empty()) std::printf("    ^ %s\n", trouble.c_str());
    troubles += trouble.empty() ? 0 : 1;
    ++counts[kernel.symbol][kernel.right ? 0 : 1];
  }
  for (const auto& [symbol, count] : counts)
    std::printf("%-26s %3d right %3d wrong\n", symbol.c_str(), count[0], count[1]);
  if (!measure_only)
    std::printf("%zu kernels, %d not what they say\n", other_kernels().size(), troubles);
  return troubles == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::other_hand

int main(int argc, char** argv) {
  return lockstep::other_hand::check(argc > 1 && std::strcmp(argv[1], "--measure") == 0);
}
