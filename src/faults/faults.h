// Bugs that can be seeded into the engine, to see the tool see them.
//
// To add one: write its seeding function in the file of its kind (rope_faults.cc ...), declare it
// in seeds.h, and add a row to the table in faults.cc. Tests and commands take them from there. A
// fault changes the engine's arguments, tables, memory or kernels; it shares no code with the
// reference.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/engine.h"

namespace lockstep {

// One fault as a user asks for it.
struct FaultRequest {
  std::string name;
  int layer = -1;   // -1: every layer
  double size = 0;  // of faults that have a size; 0: the fault's own default
};

// What a fault may change. Every fault wraps what it finds, so several can be seeded at once.
struct Seams {
  Ops& ops;
  std::vector<Engine::PassHook>& before_pass;
  const ModelConfig& config;
};

struct Fault {
  std::string_view name;
  std::string_view point;  // the first point that shows it
  std::string_view says;   // what is wrong, for people
  std::string_view needs;  // what a run must have, else nothing can be seen
  double size;             // default size; 0: it has none
  bool (*applies)(const ModelConfig& config);
  void (*seed)(const Seams& seams, const FaultRequest& request);
};

std::span<const Fault> faults();

// "NAME", "NAME@layer=2", "NAME@layer=2,size=1e-4". Throws Error on an unknown name (with the
// nearest one), an unknown key, or a value that is no number.
FaultRequest parse_fault(std::string_view text);

// Seeds it. Throws Error when the model has no such layer or nothing that the fault could break.
void seed_fault(const Seams& seams, const FaultRequest& request);

}  // namespace lockstep
