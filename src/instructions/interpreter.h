// A decode step, or any other pass, computed instruction by instruction as a schedule says, on the
// CPU: the same points with the same meaning as one op a line shows them, whoever computes what.
//
//   verbs of qwen.cc -> where each layer's tensors lie -> the schedule's instructions, each on its
//   own rows, in queues -> all points shown, in the order of the model
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "src/instructions/step_runner.h"
#include "src/model/layer_executor.h"
#include "src/schedule/schedule.h"

namespace lockstep {

struct InterpreterOptions {
  Schedule schedule;
  Interleaving interleaving;
};

// Makes executors that run passes of that model so. Throws Error unless the schedule is of the
// model's sizes, ends, holds whole heads and has opcodes of Lockstep's alone, with mlp.down in one
// sum. The options are copied. All executors share one set of buffers, so that only one of them may
// live at a time; each pass frees what the pass before kept.
MakeExecutor interpreter_of(const ModelConfig& config, InterpreterOptions options);

// The instruction that stored a number: of a row of a point, by its place behind the row's first
// one. Null: none did, such as of embed. It points into the schedule.
const Instruction* writer_of(const Schedule& schedule, std::string_view point, int layer,
                             int64_t number);

}  // namespace lockstep
