// Schedules as JSON. README.md, "Check a schedule", and the schema
// (tools/schemas/schedule.schema.json) say what stands in one; the shortest that can be read is
//
//   {"format": "lockstep-schedule", "format_version": "1.0", "queues": 2, "counters": 1,
//    "model": {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32,
//              "intermediate": 128, "vocab": 100, "qk_norm": true},
//    "columns": ["queue", "opcode", "layer", "begin", "end", "waits", "raises"],
//    "instructions": [[0, "norm_qkv_rope_append", 0, 0, 32, [], [[0, 1]]], ...]}
#pragma once

#include <string>

#include "src/schedule/schedule.h"

namespace lockstep {

// Writes all fields, also those that read_schedule() would fill in itself, so that whoever reads it
// need know no defaults.
std::string schedule_json(const Schedule& schedule);  // an instruction a line

// Throws Error on a file that is no schedule, that names a queue, a counter, a tensor or an opcode
// that it does not have, or an id twice, or where an instruction lacks what is not said elsewhere;
// what can be checked of a schedule is left to check_schedule().
Schedule read_schedule(const std::string& path);

}  // namespace lockstep
