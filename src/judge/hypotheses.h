// Ways in which an op may be computed wrongly, for the question why a finding is one. The judge
// knows none of them: reference/hypotheses implements this, src/causes asks, and no verdict depends
// on it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/judge/oracle.h"

namespace lockstep {

// An op of one pass: all rows that its place has there, whatever their requests.
struct OpInPass {
  OracleCall call;                        // attention: without keys_values
  TensorView got;                         // what was stored, a row for each of call.rows
  Numbers right;                          // Exact::want of it
  std::vector<PassRow> pass_rows;         // what each of call.rows was fed
  std::map<int32_t, KeysValues> caches;   // attention: of each request, `length` positions
  std::map<int32_t, RequestPages> pages;  // by request, where they are known
  int64_t page_size = 0;                  // 0: not known
  std::vector<size_t> few;                // rows by which guesses may be ruled out before all are
  // The tensor of another place in the same pass, rows as call.rows; empty: it was not kept.
  std::function<TensorView(const Place&)> other;
};

// One of the ways, with its parameter.
struct Guess {
  int number = 0;    // among those of the op's kind, the plainest first
  double value = 0;  // what it has one for: a width, an eps, a number of positions; else 0
  bool operator==(const Guess&) const = default;
};

// The ways in which one op may have gone wrong. What it was made of must outlive it.
class OpHypotheses {
 public:
  virtual ~OpHypotheses() = default;
  // Those that the op and its model can have, parameters searched for.
  virtual std::vector<Guess> guesses() = 0;
  // Result of a guess: fp64 before it is rounded to what is stored, one an element of `got`. Empty:
  // it says nothing of this op, or would not differ from what is right.
  virtual Numbers evaluate(const Guess& guess) = 0;
  // The same of the rows OpInPass::few alone, at their share of the cost. Empty: it does not apply,
  // or its rows are made of others, and evaluate() must be asked.
  virtual Numbers evaluate_few(const Guess&) { return {}; }
  virtual std::string says(const Guess& guess) const = 0;  // "RMSNorm over blocks of 16"
  // Whether it says where numbers landed alone, so that any other that fits as well says more.
  virtual bool is_general(const Guess&) const { return false; }
  // Whether it is about some rows itself, so that it cannot hold in others of them alone.
  virtual bool picks_rows(const Guess&) const { return false; }
};

class Hypotheses {
 public:
  virtual ~Hypotheses() = default;
  virtual std::unique_ptr<OpHypotheses> of(const OpInPass& op) = 0;
  // Why some guesses of the ops so far could not be told, though they are of such ops; empty: none.
  virtual std::string trouble() const { return ""; }
};

}  // namespace lockstep
