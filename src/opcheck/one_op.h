// A user's op in a table of Lockstep's own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/plugin/op_refusal.h"
#include "src/replay/op_runner.h"

namespace lockstep {

// The user's op did what no op may: what() names it.
class OpError : public Error {
 public:
  using Error::Error;
};

// Two tables of ops for the same run: they differ in the one op that is tried, so that all else
// that a case needs is computed by the same hand.
struct OneOp {
  // Lockstep's own, fused ops included, and the same with one op of the user's, which throws
  // OpError where it throws another Error than OpRefusal, and where it writes the cache beside the
  // slots that it is given.
  std::vector<Implementation> implementations;
  std::shared_ptr<int64_t> calls;  // of the user's op
};
// own and of_user are copied; `library` is named in the sentences of OpError. Where the op writes a
// cache the caches are copied around each call, on the CPU; the first of `calls` is made once more,
// with negative slots in some rows, which must write nowhere.
OneOp one_op(std::string_view op, const Ops& own, const Ops& of_user, const std::string& library);

}  // namespace lockstep
