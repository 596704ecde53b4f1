// A decode step, or any other pass, computed instruction by instruction as a schedule says, on the
// CPU: the same points with the same meaning as one op a line shows them, whoever computes what.
//
//   verbs of qwen.cc -> where each layer's tensors lie -> the schedule's instructions, each on its
//   own rows, in queues -> all points shown, in the order of the model
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "src/instructions/pass_tensors.h"
#include "src/instructions/step_runner.h"
#include "src/model/layer_executor.h"
#include "src/model/timeline.h"
#include "src/schedule/schedule.h"

namespace lockstep {

// An instruction that is about to be computed, for who stands around it: compute() does, and the
// tensors of the pass are there before and after.
struct StepCall {
  const Instruction& in;
  const PassParts& pass;
  PassTensors& tensors;
  std::function<void()> compute;
};

struct InterpreterOptions {
  Schedule schedule;
  Interleaving interleaving;
  std::shared_ptr<Timeline> timeline = {};  // to be told of each pass; null: none
  // Called in the place of each instruction, by several threads at once; empty: none.
  std::function<void(const StepCall&)> around = {};
};

// Whether its executors show attn.partial and attn.lse: where nothing is cut, nothing is merged.
bool shows_shares(const Schedule& schedule);

// Makes executors that run passes of that model so. Throws Error unless the schedule is of the
// model's sizes, ends, holds whole heads and has opcodes of Lockstep's alone, with mlp.down in one
// sum. The options are copied. All executors share one set of buffers, so that only one of them may
// live at a time; each pass frees what the pass before kept.
MakeExecutor interpreter_of(const ModelConfig& config, InterpreterOptions options);

// The instruction that stored a number: of a row of a point, by its place behind the row's first
// one (of attn.partial and attn.lse, whose rows have shares, then heads). Null: none did, such as
// of embed. It points into the schedule.
const Instruction* writer_of(const Schedule& schedule, std::string_view point, int layer,
                             int64_t number);

}  // namespace lockstep
