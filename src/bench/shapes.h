// The published models whose shapes are measured.
#pragma once

#include <span>

namespace lockstep {

// A published model whose shape is measured. To add one: its name and what of its config.json says
// how much there is to compute.
struct BenchShape {
  const char* name;
  const char* config;
  bool large = false;  // measured only when it is asked for by name
};

// In the order in which they are measured. Constants of the program.
std::span<const BenchShape> bench_shapes();

}  // namespace lockstep
