// Two lines that say where two traces come from, A whole and B by what is different about it.
// Options of the command lines are compared word by word, so that "the same but for --fault X" can
// be said.
#include "src/report/diff_origin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/shell_words.h"
#include "traces/run_facts.h"

namespace lockstep {
namespace {

using Facts = std::map<std::string, std::string>;

std::string fact(const Facts& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? "" : found->second;
}

// Facts that differ between any two runs, or that others say better.
bool is_of_every_run(const std::string& name) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"command_line", "created_utc", "git_dirty", "git_sha", "pages", "prompt_xxh3", "run_id",
       "tokenizer_xxh3", "trace_waits", "weight_dtype", "kv_dtype", "engine_version"});
  return std::ranges::find(kNames, name) != kNames.end();
}

// The commit, a + where it had changes, and the day.
std::string source_of(const Facts& facts) {
  const std::string sha = fact(facts, "git_sha").substr(0, 7);
  const char* dirty = fact(facts, "git_dirty") == "1" ? "+" : "";
  return fmt::format("{}{}{}{}", sha, dirty, sha.empty() ? "" : " ",
                     fact(facts, "created_utc").substr(0, 10));
}

// A is told in full.
std::string first_line(const DiffResult& result) {
  const Facts& facts = result.provenance_a;
  std::string line = fmt::format("A {}  {}", result.trace_a, source_of(facts));
  std::string how;
  for (const char* name : {"compute_dtype", "device", kMatmulFact})
    if (const std::string value = fact(facts, name); !value.empty())
      // Brackets hold a version or a model's name, which is too long for a line.
      how += fmt::format(" {}", value.substr(0, value.find(" (")));
  line += fmt::format(" {}", how);
  for (const auto& [name, shown] : std::initializer_list<std::pair<const char*, const char*>>{
           {"threads", "threads"}, {"page_size", "page"}, {"chunk", "chunk"}})
    if (const std::string value = fact(facts, name); !value.empty())
      line += fmt::format("  {} {}", shown, value);
  return line;
}

// The long name of an option, "" of a word that is none.
std::string option_name(const std::string& word) {
  static const std::map<std::string, std::string> kShort = {
      {"-d", "--device"}, {"-m", "--model"},         {"-n", "--max-new"}, {"-p", "--prompt"},
      {"-q", "--quiet"},  {"--prompts", "--prompt"}, {"-v", "--verbose"}};
  const std::string name = word.substr(0, word.find('='));
  if (const auto found = kShort.find(name); found != kShort.end()) return found->second;
  return name.starts_with("--") ? name : "";
}

// By name, the value of each option of a command line. A word that is no option belongs to the one
// before it; an option that is given twice has both values.
Facts options_of(const std::string& command_line) {
  Facts options;
  std::string open;  // the option whose values come
  for (const std::string& word : shell_words(command_line)) {
    const std::string name = option_name(word);
    if (!name.empty()) {
      open = name;
      std::string& value = options[name];
      if (const size_t equals = word.find('='); equals != word.npos)
        value += fmt::format(" {}", word.substr(equals + 1));
    } else if (!open.empty()) {
      options[open] += fmt::format(" {}", word);
    }
  }
  return options;
}

// B is told by what it has otherwise than A: that is where a reader looks for the cause. Facts that
// differ in every run (times, hosts) are left out, and so is what one of two engines does not say.
std::string second_line(const DiffResult& result) {
  const Facts &a = result.provenance_a, &b = result.provenance_b;
  std::vector<std::string> others;
  const bool other_engine = fact(a, "engine") != fact(b, "engine");
  std::set<std::string> names;
  for (const Facts* facts : {&a, &b})
    for (const auto& [name, value] : *facts) names.insert(name);
  for (const std::string& name : names) {
    const std::string of_a = fact(a, name), of_b = fact(b, name);
    if (is_of_every_run(name) || of_a == of_b) continue;
    // Engines say different things of themselves.
    if (other_engine && (of_a.empty() || of_b.empty())) continue;
    others.push_back(fmt::format("{} {:.40} (not {:.40})", name, of_b.empty() ? "none" : of_b,
                                 of_a.empty() ? "none" : of_a));
  }
  const std::vector<std::string> options =
      other_engine ? std::vector<std::string>{}
                   : other_options(fact(a, "command_line"), fact(b, "command_line"));
  for (const std::string& option : options) {
    // An option that has a fact of its name has been told by that.
    std::string name = option.substr(2, option.find(' ') - 2);
    std::ranges::replace(name, '-', '_');
    if (!names.contains(name)) others.push_back(option);
  }
  // The hash is of all that was asked for: what of it is other is said below, request by request.
  const std::string asked_a = fact(a, "prompt_xxh3"), asked_b = fact(b, "prompt_xxh3");
  if (!asked_a.empty() && !asked_b.empty() && asked_a != asked_b)
    others.emplace_back("other prompts, or in another order");
  std::string line = fmt::format("B {}  ", result.trace_b);
  if (source_of(a) != source_of(b)) line += fmt::format("{}  ", source_of(b));
  return line +
         (others.empty() ? "the same" : fmt::format("the same but {}", fmt::join(others, ", ")));
}

}  // namespace

// Options of the command lines that change numbers; names of files and of reports do not.
std::vector<std::string> other_options(const std::string& of_a, const std::string& of_b) {
  static constexpr auto kLeftOut = std::to_array<std::string_view>(
      {"--trace", "--json", "--format", "--keep", "--prompt", "--tokens", "--requests", "--model",
       "--html", "--force-from", "--quiet", "--verbose"});
  const Facts a = options_of(of_a), b = options_of(of_b);
  std::vector<std::string> others;
  for (const auto& [name, value] : b)
    if (std::ranges::find(kLeftOut, name) == kLeftOut.end() &&
        (!a.contains(name) || a.at(name) != value))
      others.push_back(name + value);
  for (const auto& [name, value] : a)
    if (std::ranges::find(kLeftOut, name) == kLeftOut.end() && !b.contains(name))
      others.push_back(fmt::format("no {}", name));
  return others;
}

std::vector<std::string> origins_of(const DiffResult& result) {
  if (result.provenance_a.empty() && result.provenance_b.empty()) return {};
  return {first_line(result), second_line(result)};
}

}  // namespace lockstep
