// Results made by hand, one of every verdict.
#pragma once

#include <limits>

#include "src/judge/story.h"
#include "src/judge/verdict.h"

namespace lockstep {

// Of rows of four heads of eight elements at positions 16 to 19: head 3 is wrong from 17 on.
inline ErrorProfile some_errors() {
  ErrorProfile errors({4, 8});
  for (int64_t position = 16; position < 20; ++position, ++errors.rows)
    for (int64_t i = 0; i < 32; ++i)
      errors.add(position, i, 0.103, -0.25, position > 16 && i / 8 == 3 ? 35.2 : 0.3);
  errors.name_node(3, 0);
  return errors;
}

inline Result clean_result() {
  Result r;
  r.expected = r.judged = 412;
  r.counts[Verdict::bitwise] = 130;
  r.counts[Verdict::rounding] = 282;
  r.places = {{.place = {&point("embed"), -1}, .expected = 4, .judged = 4},
              {.place = {&point("attn.q"), 0},
               .expected = 4,
               .judged = 4,
               .verdict = Verdict::rounding,
               .worst_t1 = 0.75,
               .worst_t2 = 0.5,
               .worst_of_row = 0.002,
               .worst_position = 17,
               .introduced_rms = 0.001,
               .propagated_rms = 0.002,
               .total_rms = 0.003},
              // Of a point that is known by its hashes alone nothing is measured.
              {.place = {&point("attn.kv"), 0},
               .expected = 4,
               .judged = 4,
               .measured = false,
               .compared = false}};
  r.requests = {{.id = 0,
                 .name = "\xff not UTF-8",
                 .prompt = {1, 2},
                 .tokens = {3},
                 .argmax = {3},
                 .text = "x",
                 .flips = {{20, 5, 9, 1.2, true}},
                 .margins = {{1, 0.5}, {2, 40}},
                 .token_texts = {"<script>alert(1)</script>", "\"&'", "x"}}};
  r.logits = LogitsSummary{.max_abs = 0.1,
                           .kl_mean = 1e-5,
                           .kl = {.median = 9e-6, .p90 = 2e-5, .max = 4e-5},
                           .compared = 24,
                           .argmax_equal = 24,
                           .least_margin_ulp = 1.25};
  r.provenance = {{"model", "m"}};
  r.limits = {{"T1", 1.0}};
  r.blind = {"bugs of decoding (prefill only)"};
  summarise(r);
  return r;
}

inline Result diverged_result() {
  Result r = clean_result();
  r.findings = {{.node = {.place = {&point("attn.q_rope"), 2}, .pass = 3, .request = 0},
                 .position = 17,
                 .statistic = StatisticKind::max_error,
                 .value = 35.2,
                 .limit = 1,
                 .index = {17, 3, 5},
                 .want = 0.103,
                 .got = -0.25,
                 .budgets = 35.2,
                 .rule = "37 of 2048 elements over their budget",
                 .shape = ShapeRule{"dims <= 31, positions >= 1", 0.919, 1}},
                {.node = {.place = {&point("logits"), -1}},
                 .verdict = Verdict::nonfinite,
                 .index = {0, 5},
                 .got = std::numeric_limits<double>::quiet_NaN(),
                 .budgets = std::numeric_limits<double>::infinity()}};
  r.places.push_back({.place = r.findings[0].node.place,
                      .expected = 4,
                      .judged = 4,
                      .verdict = Verdict::introduced,
                      .worst_t1 = 35.2,
                      .worst_position = 17,
                      .errors = some_errors()});
  r.places.push_back({.place = r.findings[1].node.place,
                      .expected = 1,
                      .judged = 1,
                      .verdict = Verdict::nonfinite});
  r.confirmations = {{{&point("attn.q_rope"), 2}, true, "confirmed: found again"},
                     {{&point("logits"), -1}, false, "not tried: only the first 1 places are"}};
  r.first = r.findings[0];
  r.counts = {130, 200, 80, 0, 1, 1, 0, 0};
  summarise(r);
  return r;
}

}  // namespace lockstep
