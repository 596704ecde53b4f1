// Ranks tell each other what they were started with, the version, the model and the options, before
// the first collective, so that the first that differs is named and not found as a hang.
// A fact is its name and value, each ended by a zero byte, which neither has.
#include <fmt/format.h>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "src/ranks/collectives.h"

namespace lockstep {

std::string text_of_facts(const std::map<std::string, std::string>& facts) {
  std::string text;
  for (const auto& [name, value] : facts) {
    text.append(name.c_str()).push_back('\0');
    text.append(value.c_str()).push_back('\0');
  }
  return text;
}

// A rank of another version may have sent anything, which is a sentence here.
std::map<std::string, std::string> facts_from(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size(); at += words.back().size() + 1) {
    const size_t end = text.find('\0', at);
    check(end != std::string::npos, "what a rank brought is cut off: is it of another version?");
    words.push_back(text.substr(at, end - at));
  }
  check(words.size() % 2 == 0, "what a rank brought is cut off: is it of another version?");
  std::map<std::string, std::string> facts;
  for (size_t i = 0; i < words.size(); i += 2) facts[words[i]] = words[i + 1];
  return facts;
}

void check_alike(const std::vector<std::string>& texts) {
  const auto first = facts_from(texts.at(0));
  const auto of = [](const auto& facts, const std::string& name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string("none") : fmt::format("'{}'", shown(found->second));
  };
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const auto other = facts_from(texts[rank]);
    std::map<std::string, std::string> names = first;
    names.insert(other.begin(), other.end());
    for (const auto& [name, value] : names)
      check(of(first, name) == of(other, name),
            "rank {} was not started as rank 0 was: its {} is {}, rank 0's is {}; give all ranks "
            "one version, model and options",
            rank, shown(name), of(other, name), of(first, name));
  }
}

}  // namespace lockstep
