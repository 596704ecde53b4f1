#include "src/stats/mutant.h"

namespace lockstep {

#ifdef LOCKSTEP_MUTANTS
namespace {
Mutant current = Mutant::none;
}  // namespace

void set_mutant(Mutant mutant) { current = mutant; }
bool is_mutant(Mutant mutant) { return current == mutant; }
#endif

}  // namespace lockstep
