#pragma once

#include <string_view>

namespace lockstep {

// The text of python_ops.py, so that a binary and its Python are of one version wherever they lie.
extern const std::string_view kPythonProgram;

}  // namespace lockstep
