// An engine of one op, which looks up rows of a table, and a judge that knows the table: writes a
// trace of one pass, reads it and judges it. `consumer TRACE WRONG`: WRONG gets another token's
// row.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "src/judge/judge.h"
#include "traces/trace.h"

using namespace lockstep;

// The row of token t is t, t, t, t.
class TableOracle final : public Oracle {
 public:
  Graph graph() const override {
    Graph graph;
    graph.add({&point("embed")}, {});
    return graph;
  }
  bool has_bias(const Place&) const override { return false; }
  int64_t chosen_experts() const override { return 0; }
  Exact evaluate(const OracleCall& call) override {
    std::vector<double> want;
    for (const int32_t token : call.tokens) want.insert(want.end(), 4, token);
    return {.shape = {std::ssize(call.tokens), 4}, .want = want};
  }
};

int main(int, char** arguments) {
  const std::string path = arguments[1];
  const int32_t wrong = std::atoi(arguments[2]);
  TableOracle oracle;
  const Manifest manifest{.graph = oracle.graph(), .dtype = DType::f32, .level = TraceLevel::full};
  const RequestInfo request{.prompt = {5, 7, 9}};

  PassInfo pass;
  Tensor rows({3, 4}, DType::f32);
  for (int32_t i = 0; i < 3; ++i) {
    const int32_t token = request.prompt[static_cast<size_t>(i)];
    pass.rows.push_back({{0, i}, token, i});
    std::fill_n(rows.as<float>() + 4 * i, 4, static_cast<float>(token == wrong ? 5 : token));
  }
  const auto writer = create_trace(path, manifest);
  Recorder recorder({}, /*digests=*/true, [&](const Pass& seen) { writer->write(seen); });
  Probe probe(&recorder);
  probe.begin(pass);
  probe(point("embed"), -1, rows);
  probe.end();
  writer->finish({request});

  const auto trace = open_trace(path);
  Judge judge(trace->manifest(), oracle, nullptr, nullptr, {});
  for (int i = 0; i < trace->passes(); ++i) judge.judge(trace->read(i, /*data=*/true));
  const Result result = judge.finish(trace->manifest().requests, trace->complete());
  std::printf("%s\n", result.story.c_str());
  return result.first ? 1 : 0;
}
