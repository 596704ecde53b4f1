// Passes that are computed instruction by instruction against the activations of Hugging Face:
// those that the model's own executor is held to, within the same limits.
#include "src/instructions/interpreter.h"
#include "src/schedule/make_schedule.h"
#include "tests/against_golden.h"

namespace lockstep {
namespace {

// A prompt is computed by the same schedule as a step, so that all stored steps are compared. Pages
// are so small that each share holds some.
TEST_P(AgainstGolden, EveryStoredOpAndEveryTokenOfASchedule) {
  const ModelConfig& config = checkpoint_.config();
  const ScheduleOptions cuts[] = {{.queues = 1}, {.queues = 4, .kv_shares = 3}, {.queues = 132}};
  for (const ScheduleOptions& cut : cuts) {
    SCOPED_TRACE(fmt::format("{} queues, {} shares", cut.queues, cut.kv_shares));
    const Schedule schedule = make_schedule(scheduled_model(config), cut);
    // A few queues are threads; many run in one order by chance, which takes less time.
    const Interleaving order = cut.queues > 4 ? Interleaving{.seed = 7} : Interleaving{};
    hold({.page_size = 2,
          .make_executor = interpreter_of(config, {schedule, order}),
          .in_shares = shows_shares(schedule)});
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstGolden, testing::ValuesIn(all_goldens()), name_of_golden);

}  // namespace
}  // namespace lockstep
