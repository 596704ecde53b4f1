// One pass of one op as a case of its own: all that the op reads, by value.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/replay/op_runner.h"
#include "src/replay/trial.h"

namespace lockstep {

// The elements of an implementation's result beside the exact ones; all fields one an element.
struct CaseElements {
  std::vector<Row> rows;  // one a row
  int64_t row_size = 0;
  // In fp64: the exact result, the budget B and what was stored, the last without a rounding of its
  // own.
  std::vector<double> want, limit, got;

  bool is_wrong(size_t element) const;
  // Indices of the wrong elements, ascending.
  std::vector<size_t> wrong() const;
  // The wrong element that is furthest off in budgets; there must be one.
  size_t worst() const;
};

// A case and who may be asked about it. Everything is borrowed.
struct CaseJudge {
  const Manifest& manifest;
  Oracle& oracle;
  OpRunner& runner;
  size_t which = 0;  // implementation of the runner
  Place place;
  RoundingContract contract = RoundingContract::fused;
  int64_t page_size = 0;
};

// The tensors of a pass that an op reads, and what it made, without hashes: attn.kv has numbers.
// Empty where they are not all there: `lacking` says what is not. Views share the memory of the
// pass, but for the cache, which is put together anew.
Pass case_of(const Pass& pass, const Place& place, const Graph& graph, const KvHistory& history,
             std::string& lacking);

// The exact result of the case beside what came of it: by the judge's implementation, or as
// the case has it where `stored`. Throws Error as the oracle and the op do.
CaseElements judged_case(const CaseJudge& judge, const Pass& op_case, bool stored);

}  // namespace lockstep
