// A judge that is wrong in a known way, which `lockstep selftest` must not let pass.
//
// Only the tests build one (lockstep_mutants, of the files that ask, with LOCKSTEP_MUTANTS
// defined). In what is shipped is_mutant() is false when it is compiled, and costs nothing. It is
// asked in .cc files alone, so that no header differs between the two builds.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

enum class Mutant : uint8_t {
  none,
  wide_budgets,        // all budgets, variances and chances of a misround times 20
  no_t0,               // the statistic of that name is never made
  no_t1,               //
  no_t2,               //
  no_t3,               //
  no_t4,               //
  no_t5,               //
  no_pooling,          // nodes are judged alone
  nan_passes,          // what is no number is taken for an overflow that is due
  exact_one_ulp_off,   // the exact result is moved by one ulp of the dtype
  names_next_op,       // findings are attributed to the op after
  many_false_alarms,   // limits are made for a risk of 1e-2 instead of 1e-9
  tries_any_contract,  // a declared contract is only one of those that are tried
  first_layer_only,    // later layers are never looked at
};
inline constexpr std::array kMutantNames = {"none",
                                            "wide_budgets",
                                            "no_t0",
                                            "no_t1",
                                            "no_t2",
                                            "no_t3",
                                            "no_t4",
                                            "no_t5",
                                            "no_pooling",
                                            "nan_passes",
                                            "exact_one_ulp_off",
                                            "names_next_op",
                                            "many_false_alarms",
                                            "tries_any_contract",
                                            "first_layer_only"};

#ifdef LOCKSTEP_MUTANTS
// Sets the mutant of every judge of the process. It must not be called while one judges.
void set_mutant(Mutant mutant);
bool is_mutant(Mutant mutant);
#else
constexpr bool is_mutant(Mutant) { return false; }
#endif

}  // namespace lockstep
