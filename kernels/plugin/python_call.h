#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/stream.h"
#include "kernels/kv_cache.h"
#include "kernels/paged_attention.h"
#include "kernels/plugin/guarded_output.h"
#include "kernels/plugin/python_process.h"

namespace lockstep {

// Says whose function is called where: "rms_norm of mine.py at layer 1 mlp.norm".
std::string who_is_called(std::string_view op, const PythonProcess& process,
                          const OpContext& context);

// The line of one call of a Python function, and where its tensors, which are in host memory, lie
// in the shared one. Tensors and outputs are borrowed. For one call and one thread.
class PythonCall {
 public:
  void add(const TensorView& tensor);
  void add(const WeightView& weight) { add(plain_codes("--ops", weight)); }
  void add(const KvCache& cache);
  void add(const AttentionBatch& batch);
  void add(const std::vector<TensorView>& tensors);
  void add(float x);
  void add(int64_t x);
  void add(bool x) { say(x ? "bool:1" : "bool:0"); }
  // A word before arguments that are parts of one, which says of what.
  void say(std::string_view word) { words_.append(" ").append(word); }

  // Comes first, as in C++.
  void add_output(const GuardedOutput& output);
  // A cache is written where it is.
  void add_output(const KvCache& cache);

  // Throws Error, which begins with `who`, when the function failed or changed an input; `names`
  // are those of the inputs that are tensors, in their order.
  void run(PythonProcess& process, const std::string& who, std::string_view op,
           const std::vector<std::string_view>& names) const;

 private:
  struct Placed {
    TensorView tensor;
    int64_t at;  // bytes from the begin of the memory
  };

  int64_t place(int64_t bytes);
  void say(std::string_view kind, const TensorView& tensor, int64_t at);

  std::string words_;
  std::vector<Placed> inputs_, outputs_;
  int64_t size_ = 0;
};

}  // namespace lockstep
