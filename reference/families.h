// The table of reference models, by the architecture that config.json names.
#pragma once

#include <memory>
#include <string_view>

#include "probes/graph.h"
#include "reference/reference.h"

namespace lockstep {

// How the models of an architecture are made. Rows are constants of the program; what they make
// borrows the checkpoint.
struct Family {
  std::string_view architecture;
  Graph (*graph)(const ModelConfig&);
  std::unique_ptr<ReferenceModel> (*make)(const Checkpoint&, const ReferenceOptions&,
                                          DType compute);
  std::unique_ptr<ErrorSharer> (*make_sharer)(const Checkpoint&, const ReferenceOptions&);
};

// Throws Error when the reference does not know the architecture.
const Family& family_of(const ModelConfig& config);

}  // namespace lockstep
