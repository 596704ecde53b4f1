// The lines name what is wrong, how small the case became, whether Lockstep's own op is right on
// it, and the two commands that run it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/judge/ledger.h"
#include "src/replay/repro.h"
#include "src/report/shell_word.h"
#include "src/session/build_info.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::string json_of(const ReproResult& result) {
  const TrialResult::Element& worst = result.worst;
  return Json{{"format", "lockstep-repro"},
              {"format_version", "1.0"},
              {"source", result.source},
              {"folder", result.folder},
              {"layer", result.place.layer < 0 ? Json() : Json(result.place.layer)},
              {"point", result.place.point->name},
              {"by", result.by},
              {"pass", result.pass},
              {"rows", result.rows},
              {"of_rows", result.of_rows},
              {"keys", result.keys},
              {"of_keys", result.of_keys},
              {"wrong", result.wrong},
              {"elements", result.elements},
              {"bytes", result.bytes},
              {"worst",
               {{"want", json_number<Json>(worst.want)},
                {"got", json_number<Json>(worst.got)},
                {"budgets", json_number<Json>(worst.budgets)}}},
              {"steps", result.steps},
              {"unlike_run", result.unlike_run},
              {"own_is_right", result.own_is_right}}
      .dump(2);
}

}  // namespace

std::string shown(double x, int digits) {
  return std::isnan(x) ? "NaN" : fmt::format("{:.{}g}", x, digits);
}

Document document_of(const ReproResult& result) {
  Document document{.json = json_of(result)};
  std::vector<Block>& blocks = document.blocks;
  blocks.push_back(Paragraph{fmt::format("lockstep {}  {} of {}, pass {}", kToolVersion,
                                         text_of(result.place), result.source, result.pass),
                             0, 2, /*strong=*/true});
  KeyValues lines{.entries = {}, .indent = 2, .key_width = 10};
  const auto line = [&](const char* name, std::string text) {
    lines.entries.emplace_back(name, std::move(text));
  };
  line("wrong", fmt::format("{}: {} elements, the worst want {}, got {}, {} x its budget",
                            result.by, result.wrong, shown(result.worst.want, 6),
                            shown(result.worst.got, 6), shown(result.worst.budgets, 3)));
  line("rows", fmt::format("{} of {}", result.rows, result.of_rows));
  if (result.of_keys > 0) line("keys", fmt::format("{} of {}", result.keys, result.of_keys));
  if (!result.steps.empty()) line("reduced", fmt::format("{}", fmt::join(result.steps, "\n")));
  if (!result.unlike_run.empty()) line("anew", result.unlike_run);
  line("lockstep", result.own_is_right ? "its own op is right on the case"
                                       : "its own op is wrong on the case too");
  line("folder", fmt::format("{}: {} bytes", result.folder, result.bytes));
  line("next",
       fmt::format("cc {} -o {} -ldl -lm && {} LIB.so\npython3 {} LIB.so",
                   shell_word(result.folder + "/repro.c"), shell_word(result.folder + "/repro"),
                   shell_word(result.folder + "/repro"), shell_word(result.folder + "/repro.py")));
  blocks.push_back(std::move(lines));
  return document;
}

}  // namespace lockstep
