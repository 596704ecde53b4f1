// The roofs of this machine's memory and CPU.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "src/bench/figures.h"

namespace lockstep {

// Roofs that are measured before and after each figure, because the machine drifts: what it gives
// can change by half within a minute when others share it. It owns its threads and a buffer that no
// cache holds.
class CpuRoofs {
 public:
  explicit CpuRoofs(int threads);

  // Measures again; from here on `read` and `dot` are the better of this time and the last.
  void sample();
  double read() const { return better_of_last(read_all_); }  // bytes a second, all threads
  double dot() const { return better_of_last(dot_all_); }    // operations a second, all threads
  double bytes() const { return static_cast<double>(buffer_.view().bytes()); }  // resident

  std::vector<Figure> figures();

 private:
  static double better_of_last(const std::vector<double>& samples) {
    const size_t n = samples.size();
    return n > 1 ? std::max(samples[n - 1], samples[n - 2]) : samples.back();
  }

  ThreadPool one_{1}, all_;
  Tensor buffer_;
  std::vector<double> read_one_, read_all_, dot_one_, dot_all_;
};

}  // namespace lockstep
