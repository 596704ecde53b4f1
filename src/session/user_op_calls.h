#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "src/judge/determinism.h"
#include "src/judge/verdict.h"

namespace lockstep {

// Which of a user's ops were called. An op that the model has no place for, or whose place a fault
// or a fused op took, leaves no number behind: nothing that was judged is of it.
class UserOpCalls {
 public:
  // file: that of the library, as it was given. names: of its ops.
  UserOpCalls(std::string file, const std::vector<std::string>& names);
  UserOpCalls(const UserOpCalls&) = delete;
  UserOpCalls& operator=(const UserOpCalls&) = delete;

  // Puts a count around each of these ops in a table that has them. The table refers to this.
  void count(Ops& ops);

  // The ops, and whose they are: "rms_norm, rope of ./mine.so".
  std::string text() const;
  // The same of those that were called; "": none was.
  std::string called() const;

  // Has a result name as the user's ops those that were called, and say which were not: a library
  // may have ops of more models than one. A clean result becomes inconclusive where none was.
  void put_into(Result& result) const;
  void put_into(Determinism& result) const;

 private:
  struct Op {
    std::string name;
    std::atomic<bool> called = false;  // ops of several queues are called at once
  };
  std::string text_of(const std::vector<std::string_view>& names) const;
  std::vector<std::string_view> names(bool called) const;
  template <typename AnyResult>
  void say_in(AnyResult& result) const;

  std::string file_;
  bool covers_ = false;  // one of them stands in the place of all others within a layer
  std::deque<Op> ops_;
};

}  // namespace lockstep
