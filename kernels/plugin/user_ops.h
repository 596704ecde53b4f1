#pragma once

#include <functional>
#include <string>

#include "kernels/ops.h"
#include "kernels/plugin/python_ops.h"

namespace lockstep {

// `ops` with those of a user's shared library in their places (lockstep_ops.h is its interface), or
// with those of a Python file, where the path ends in .py (python_ops.h). An op of the library
// throws Error when it says that it failed, when its kernels did, when it left an element of its
// output unwritten, when it wrote beside it or into an input, and when it left the floating-point
// control of the thread changed. The library stays open until the process ends. device: whose
// tensors the table is for. Throws Error when it cannot be opened, was made for another interface,
// exports no op, or a function with the prefix of ops that is none.
ReplacedOps replace_ops(Ops ops, const std::string& path, Device device);

// The same, the table alone, of a library.
Ops with_user_ops(Ops ops, const std::string& path);

// The same of functions that are there already: `find` has them by their names in lockstep_ops.h,
// and null for ops that are to stay. library: what errors call it.
Ops with_user_functions(Ops ops, const std::function<void*(const char* symbol)>& find,
                        const std::string& library);

// The seconds that functions of user's libraries took on this thread since they were last
// forgotten, on a device until their kernels were done, without what is done to guard them. 0: none
// was called, or those of a Python file, which are not told apart from the way of their tensors.
double user_op_seconds();
void forget_user_op_seconds();

}  // namespace lockstep
