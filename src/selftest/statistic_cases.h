// Kernels that are made up so that one statistic alone can see what is wrong with them, and right
// ones that none may accuse.
#pragma once

#include <string>
#include <vector>

#include "src/judge/verdict.h"

namespace lockstep {

// By which statistic, and over what: "T2" of a node, "T2 of all passes" of a place, "T2 of all
// layers" of a point. "nonfinite" and the like where no number decided.
std::string statistic_of(const Finding& finding);

// The outcome of one made-up run.
struct StatisticCase {
  std::string name;
  // "clean", or what is found first: "T2", "T2 of all passes", "T2 of all layers". Found may be any
  // other verdict, or a finding of another place than the one that is wrong.
  std::string wanted, found;
  bool passed() const { return wanted == found; }
};

// Runs of a made-up op whose exact results are given, and whose kernel is wrong in a way that one
// statistic alone can see (moments.h), or right and at its worst. Each is judged as a run is. They
// are the same on every model and in every selftest, and take less than a second.
//
// The op is a linear one of K = 256 products, of exact results that are normal numbers, and of S =
// sum |a||w|. The unit of its errors is what a sum of K products in fp32 comes to that are added
// one after the other: the walk, sqrt(K)/3 2^-24 S (roundoff.h has the derivation, and this no
// other number of the judge's).
std::vector<StatisticCase> statistic_cases();

}  // namespace lockstep
