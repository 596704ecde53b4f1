// Holds the best logits that a trace names to its own tensor of logits, where it has one: a writer
// that names others contradicts itself.
#include "src/judge/top_logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Says what is wrong with `said` where `best` is the truth of row i of the logits; "": nothing.
std::string wrong_values(const TopLogits& said, const TopLogits& best, const TensorView& logits,
                         int64_t i) {
  if (said.ids.size() != best.ids.size() || said.values.size() != best.values.size())
    return fmt::format("/logits names {} tokens of this row, wanted {}", said.ids.size(),
                       best.ids.size());
  for (size_t k = 0; k < best.ids.size(); ++k) {
    const int32_t id = said.ids[k];
    if (std::count(said.ids.begin(), said.ids.end(), id) > 1)
      return fmt::format("/logits names token {} of this row more than once", id);
    const bool valid = id >= 0 && id < logits.shape[1];
    const double has = valid ? value_at(logits, i * logits.shape[1] + id) : 0;
    if (same(said.values[k], best.values[k]) && valid && same(has, best.values[k])) continue;
    return fmt::format(
        "/logits says that number {} of the most likely tokens is {}, of {:.6g}, where the tensor "
        "has {}, of {:.6g}",
        k + 1, id, said.values[k], best.ids[k], best.values[k]);
  }
  return "";
}

// Says where the choice that a row names is another than the tensor of choices has; "": nowhere.
std::string other_than_tensor(const TopLogits& said, const RecordedTensor* token) {
  if (!token || token->dtype != DType::i32 || token->data.view().empty()) return "";
  const auto at = std::ranges::find(token->rows, said.row) - token->rows.begin();
  if (at == std::ssize(token->rows)) return "";
  const auto chosen = static_cast<int32_t>(value_at(token->data, at));
  if (chosen == said.chosen) return "";
  return fmt::format("/logits says that token {} was chosen, the tensor has {}", said.chosen,
                     chosen);
}

Finding finding_at(const Point& point, const Pass& pass, const Row& row, std::string rule) {
  return {.node = {.place = {&point, -1}, .pass = pass.info.pass, .request = row.request},
          .position = row.position,
          .verdict = Verdict::structural,
          .rule = std::move(rule)};
}

// Says what is wrong with the choice that a row names, whoever judges the op that made it; "":
// nothing.
std::string wrong_choice(const TopLogits& said) {
  if (said.chosen < 0 || said.ids.empty() || std::isnan(said.values[0])) return "";
  // Where all that were kept are as large, so may be others.
  if (std::ssize(said.ids) == kTopLogits && said.values.back() == said.values[0]) return "";
  for (size_t k = 0; k < said.ids.size(); ++k)
    if (said.ids[k] == said.chosen && said.values[k] == said.values[0]) return "";
  return fmt::format("token {} was chosen, where the largest logit is that of token {}",
                     said.chosen, said.ids[0]);
}

}  // namespace

std::vector<Finding> top_logits_findings(const Pass& pass) {
  const RecordedTensor* logits = pass.find(point("logits"), -1);
  const RecordedTensor* token = pass.find(point("token"), -1);
  std::vector<Finding> findings;
  if (!logits) return findings;
  const auto find = [&](const Point& of, const Row& row, std::string rule) {
    findings.push_back(finding_at(of, pass, row, std::move(rule)));
  };
  const TensorView& view = logits->data;
  const bool kept = !view.empty() && view.shape.rank() == 2 && is_float(view.dtype) &&
                    view.rows() == std::ssize(logits->rows);
  const std::vector<TopLogits> best =
      kept ? top_logits_of(view, logits->rows) : std::vector<TopLogits>{};
  for (size_t i = 0; i < logits->rows.size(); ++i) {
    const Row& row = logits->rows[i];
    const auto said = std::ranges::find(pass.logits, row, &TopLogits::row);
    const auto times = std::ranges::count(pass.logits, row, &TopLogits::row);
    if (times != 1)
      find(point("logits"), row, fmt::format("/logits has this row {} times, wanted once", times));
    else if (const std::string rule = kept ? wrong_values(*said, best[i], view, i) : "";
             !rule.empty())
      find(point("logits"), row, rule);
    if (times != 1) continue;
    if (const std::string rule = other_than_tensor(*said, token); !rule.empty())
      find(point("token"), row, rule);
  }
  for (const TopLogits& top : pass.logits)
    if (std::ranges::count(logits->rows, top.row) == 0)
      find(point("logits"), top.row, "/logits has this row, the tensor of logits has not");
  return findings;
}

std::vector<Finding> wrong_choices(const Pass& pass) {
  std::vector<Finding> findings;
  for (const TopLogits& top : pass.logits)
    if (std::string rule = wrong_choice(top); !rule.empty())
      findings.push_back(finding_at(point("token"), pass, top.row, std::move(rule)));
  return findings;
}

}  // namespace lockstep
