// One pass of one op as a case of its own: all that the op reads, by value.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/replay/call_places.h"
#include "src/replay/op_runner.h"
#include "src/replay/trial.h"

namespace lockstep {

// The elements of an implementation's result beside the exact ones.
struct CaseElements {
  // The part of the elements that is of one output: all of its rows.
  struct Output {
    std::string argument;  // that they are stored in: "out", "cache.k"
    DType dtype = DType::f32;
    int64_t row_size = 0;
    size_t first = 0;         // element
    std::vector<int64_t> at;  // where each row begins in the argument
  };
  std::vector<Row> rows;  // of each output
  std::vector<Output> outputs;
  // One an element, in fp64: the exact result, the budget B and what was stored, the last without a
  // rounding of its own.
  std::vector<double> want, limit, got;

  const Output& output_of(size_t element) const;
  const Row& row_of(size_t element) const;
  int64_t column_of(size_t element) const;
  bool is_wrong(size_t element) const;
  // How far the element is off; Infinity where that is no number.
  double budgets(size_t element) const;
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
  const CallPlaces& call;
  // Those of the places of the call, by point name.
  std::map<std::string, RoundingContract> contracts;
  PoolFacts pool = {};

  RoundingContract contract_at(const Place& place) const {
    const auto found = contracts.find(std::string(place.point->name));
    return found == contracts.end() ? RoundingContract::fused : found->second;
  }
};

// The tensors of a pass that a call reads, and what it made, without hashes: attn.kv has numbers.
// Empty where they are not all there: `lacking` says what is not. Views share the memory of the
// pass, but for the cache, which is put together anew. A cache that the call writes holds 0, as
// what others wrote there is nothing to it: `position` is the shape of the K of one, heads and dim.
Pass case_of(const Pass& pass, const CallPlaces& call, const KvHistory& history,
             const Shape& position, DType dtype, std::string& lacking);

// The exact result of the case beside what came of it: by the judge's implementation, or as
// the case has it where `stored`. Throws Error as the oracle and the op do.
CaseElements judged_case(const CaseJudge& judge, const Pass& op_case, bool stored);

}  // namespace lockstep
