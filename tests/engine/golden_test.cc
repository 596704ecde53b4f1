// The engine's own ops against the activations of Hugging Face.
#include "tests/against_golden.h"

namespace lockstep {
namespace {

TEST_P(AgainstGolden, EveryStoredOpAndEveryToken) { hold({}); }

INSTANTIATE_TEST_SUITE_P(Models, AgainstGolden, testing::ValuesIn(all_goldens()), name_of_golden);

}  // namespace
}  // namespace lockstep
