#include "src/bench/cpu_roofs.h"

#include <fmt/format.h>

#include <cstring>

#include "kernels/bench/roofs.h"

namespace lockstep {

CpuRoofs::CpuRoofs(int threads) : all_(threads), buffer_({uncached_bytes()}, DType::u8) {
  // Pages that nobody wrote to are all one page of zeros, which a cache holds.
  std::memset(buffer_.view().data, 1, buffer_.view().bytes());
  sample();
}

void CpuRoofs::sample() {
  read_one_.push_back(read_roof(one_, buffer_.view().data, buffer_.view().bytes()));
  read_all_.push_back(read_roof(all_, buffer_.view().data, buffer_.view().bytes()));
  dot_one_.push_back(dot_roof(one_).flops);
  dot_all_.push_back(dot_roof(all_).flops);
}

std::vector<Figure> CpuRoofs::figures() {
  const auto name = [](const std::string& what, int threads) {
    return fmt::format("{}, {} thread{}", what, threads, threads == 1 ? "" : "s");
  };
  const std::string path(dot_roof(one_).path);
  std::vector<Figure> list = {{"machine", name("read", 1), "GB/s", 1e-9, read_one_},
                              {"machine", name(path, 1), "GFLOP/s", 1e-9, dot_one_}};
  if (all_.size() == 1) return list;
  list.push_back({"machine", name("read", all_.size()), "GB/s", 1e-9, read_all_});
  list.push_back({"machine", name(path, all_.size()), "GFLOP/s", 1e-9, dot_all_});
  return list;
}

}  // namespace lockstep
