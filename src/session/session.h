#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/engine.h"
#include "src/instructions/interpreter.h"
#include "src/model/timeline.h"
#include "src/schedule/schedule.h"
#include "src/session/options.h"
#include "src/session/user_op_calls.h"
#include "src/weights/tokenizer.h"

namespace lockstep {

// Everything that ModelOptions name, opened and read, the device too. An engine that is made of it
// borrows the checkpoint: the session must outlive it.
struct Session {
  Checkpoint checkpoint;
  std::optional<Tokenizer> tokenizer;  // a checkpoint without one can still be fed token ids
  std::vector<Request> requests;
  EngineOptions engine;
  Ops ops;               // of the engine's device, with the user's in their places
  std::string user_ops;  // "rms_norm, rope of ./mine.so"; "": there are none
  std::string user_ops_file;
  std::shared_ptr<UserOpCalls> user_op_calls;  // of these; null: there are none
  std::shared_ptr<const Schedule> schedule;    // by which passes are computed; null: by none
  std::optional<InterpreterOptions> step;      // of that schedule
  std::shared_ptr<Timeline> timeline;          // of the last step; null: not asked for
  std::vector<std::string> notes;              // on how it was opened, for the result of a run

  // The text of token ids; empty without a tokenizer.
  std::string text_of(const std::vector<int32_t>& tokens) const;
  // For what prints text. Throws Error when the checkpoint has none.
  const Tokenizer& wanted_tokenizer() const;
};

// Throws Error when a file is not what it should be or the options name no request.
Session open_session(const ModelOptions& options);
// The same without requests, and with the pages that were asked for, which may be none.
Session open_model(const ModelOptions& options);

}  // namespace lockstep
