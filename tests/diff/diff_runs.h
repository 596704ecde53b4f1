#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/diff/diff.h"
#include "tests/judge/memory_trace.h"

namespace lockstep {

inline FakeRun run_of(DType dtype = DType::bf16, Spoil spoil = {}) {
  FakeModel model(dtype, std::move(spoil));
  return fake_run(model, dtype);
}

// Spoils that place, in every pass.
inline Spoil spoil_at(const std::string& name, int layer,
                      std::function<void(std::vector<double>&)> how) {
  return [=](const Place& place, const PassInfo&, std::vector<double>& v) {
    if (place.point->name == name && place.layer == layer) how(v);
  };
}

inline DiffResult diff_of(FakeRun a, FakeRun b, const Selection& selection = {}) {
  MemoryTrace x(std::move(a)), y(std::move(b));
  return diff(x, y, selection);
}

// Of the first row of request 0.
inline RecordedTensor kept(const Point& point, int layer, const std::vector<double>& values,
                           DType dtype) {
  RecordedTensor t{.point = &point, .layer = layer, .rows = {{0, 0}}, .dtype = dtype};
  t.data = rounded_tensor(values, {1, std::ssize(values)}, dtype);
  t.shape = t.data.view().shape;
  t.digest = digest_of(t.data);
  t.row_hashes = row_hashes_of(t.data);
  return t;
}

}  // namespace lockstep
