// Cases of the ops that take rows one by one: norms, rotary embeddings, silu, sums, copies, argmax.
#include <algorithm>
#include <cmath>

#include "tests/other_hand/cases.h"

namespace lockstep::other_hand {
namespace {

using Shape = std::vector<int64_t>;
using Held = std::shared_ptr<Array>;

Held floats(Kind kind, const Shape& shape, const std::vector<double>& values) {
  return std::make_shared<Array>(kind, shape, values);
}
Held output(Kind kind, const Shape& shape) { return std::make_shared<Array>(kind, shape); }

// --- rms_norm -----------------------------------------------------------------------------------

Case norm_case(Kind kind, const Shape& shape, uint64_t seed, bool outliers) {
  Random random(seed);
  const int64_t width = shape.back();
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  std::vector<double> values =
      outliers ? with_outliers(random, rows, width, 1) : normals(random, rows * width, 2);
  // Rows of the size of an embedding's, in which eps counts; and one of zeros.
  for (int64_t i = 0; i < width && rows > 3; ++i) {
    values[static_cast<size_t>(width + i)] *= 2e-3;
    values[static_cast<size_t>(2 * width + i)] *= 0.03;
    values[static_cast<size_t>(3 * width + i)] = 0;
  }
  std::vector<double> weights;
  for (int64_t i = 0; i < width; ++i) weights.push_back(1 + random.normal(0.3));
  weights[static_cast<size_t>(width / 3)] = 6;
  const float eps = 1e-6F;
  Case made = {"width " + std::to_string(width), kind};
  const Held x = floats(kind, shape, values), weight = floats(kind, {width}, weights);
  const Held out = output(kind, shape);
  made.inputs = {x, weight};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"attn.norm", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_rms_norm)>(function)(&call, out->get(), x->get(),
                                                                    weight->get(), eps);
  };
  const std::vector<double> xs = x->values(), ws = weight->values();
  for (int64_t row = 0; row < rows; ++row) {
    const double* at = xs.data() + row * width;
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += at[i] * at[i];
    const double inverse = 1 / std::sqrt(squares / to_double(width) + static_cast<double>(eps));
    for (int64_t i = 0; i < width; ++i) {
      const double gain = ws[static_cast<size_t>(i)], value = at[i] * inverse * gain;
      const double fused = sum_slack(width) * std::fabs(value);
      made.exact.push_back(value);
      made.slack["fused"].push_back(fused);
      made.slack["hf"].push_back(fused + 1.01 * roundoff(kind) * std::fabs(value) +
                                 underflow(kind) * std::fabs(gain));
    }
  }
  return made;
}

// --- rope ---------------------------------------------------------------------------------------

struct RopeShape {
  double base;
  int64_t heads, half, entries;
  std::vector<int64_t> positions;
};

Case rope_case(Kind kind, const RopeShape& of, uint64_t seed) {
  Random random(seed);
  const auto tokens = static_cast<int64_t>(of.positions.size());
  std::vector<double> cosines, sines;
  for (int64_t p = 0; p < of.entries; ++p)
    for (int64_t j = 0; j < of.half; ++j) {
      // The steps of Hugging Face, each in fp32.
      const float frequency =
          1 / std::pow(static_cast<float>(of.base), to_float(2 * j) / to_float(2 * of.half));
      const float angle = to_float(p) * frequency;
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  const Shape shape = {tokens, of.heads, 2 * of.half};
  const Held x = floats(kind, shape, with_outliers(random, tokens * of.heads, 2 * of.half, 1));
  const Held cos = floats(Kind::fp32, {of.entries, of.half}, cosines);
  const Held sin = floats(Kind::fp32, {of.entries, of.half}, sines);
  const auto positions = std::make_shared<Array>(Array::of_int32({tokens}, of.positions));
  const Held out = output(kind, shape);
  Case made = {"base " + std::to_string(static_cast<int>(of.base)), kind};
  made.inputs = {x, cos, sin, positions};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"attn.q_rope", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_rope)>(function)(
        &call, out->get(), x->get(), cos->get(), sin->get(), positions->get());
  };
  const std::vector<double> xs = x->values();
  for (int64_t row = 0; row < tokens * of.heads; ++row)
    for (int64_t i = 0; i < 2 * of.half; ++i) {
      const int64_t j = i % of.half, p = of.positions[static_cast<size_t>(row / of.heads)];
      const double c = static_cast<float>(cosines[static_cast<size_t>(p * of.half + j)]);
      const double s = static_cast<float>(sines[static_cast<size_t>(p * of.half + j)]);
      const double own = xs[static_cast<size_t>(row * 2 * of.half + i)];
      const double other =
          xs[static_cast<size_t>(row * 2 * of.half + (i + of.half) % (2 * of.half))];
      const double straight = own * c, crossed = (i < of.half ? -other : other) * s;
      const double size = std::fabs(straight) + std::fabs(crossed);
      const double all = std::fabs(own) + std::fabs(other);
      made.exact.push_back(straight + crossed);
      made.typical.push_back(std::hypot(own, other));
      made.slack["fused"].push_back(4 * kFp32 * size);
      made.slack["hf"].push_back((4 * kFp32 + 2.02 * roundoff(kind)) * size +
                                 underflow(kind) * (2 + all));
      // Cosines that the kernel makes: another rounding of them, or another angle.
      made.slack["own angles"].push_back(4 * kFp32 * size + 2 * kFp32 * all);
      const double frequency = std::pow(of.base, -to_double(j) / to_double(of.half));
      made.slack["own angles in fp64"].push_back(4 * kFp32 * size +
                                                 (2 + 2 * to_double(p) * frequency) * kFp32 * all);
    }
  return made;
}

// --- silu_mul, add ------------------------------------------------------------------------------

Case silu_case(Kind kind, int64_t rows, int64_t width, uint64_t seed) {
  Random random(seed);
  std::vector<double> gates, ups;
  for (int64_t i = 0; i < rows * width; ++i) {
    const bool outlier = i % 37 == 0;
    gates.push_back(std::clamp(random.normal(outlier ? 15 : 3), -60.0, 60.0));
    // Products of a range of sizes, some of which fp16 has as subnormals alone.
    ups.push_back(random.normal(outlier ? 12 : 1) * (i % 11 == 0 ? 1e-5 : 1));
  }
  const Shape shape = {rows, width};
  const Held gate = floats(kind, shape, gates), up = floats(kind, shape, ups);
  const Held out = output(kind, shape);
  Case made = {"width " + std::to_string(width), kind};
  made.inputs = {gate, up};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"mlp.act", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_silu_mul)>(function)(&call, out->get(), gate->get(),
                                                                    up->get());
  };
  const std::vector<double> g = gate->values(), u = up->values();
  for (size_t i = 0; i < g.size(); ++i) {
    const double value = g[i] / (1 + std::exp(-g[i])) * u[i];
    // The angle of a power of two is rounded in kernels for 16 bits.
    const double angle = kind == Kind::fp32 ? 0 : 2 * std::fabs(g[i]);
    // A tanh near -1 is rounded by half of 2^-24, and half of that is left in a sigmoid made of it.
    const double of_tanh = 0.5 * kFp32 * std::fabs(g[i] * u[i]);
    const double fused = (8 + angle) * kFp32 * std::fabs(value) + of_tanh;
    made.exact.push_back(value);
    made.slack["fused"].push_back(fused);
    made.slack["hf"].push_back(fused + 1.01 * roundoff(kind) * std::fabs(value) +
                               underflow(kind) * std::fabs(u[i]));
  }
  return made;
}

Case add_case(Kind kind, int64_t rows, int64_t width, uint64_t seed) {
  Random random(seed);
  const Shape shape = {rows, width};
  const Held a = floats(kind, shape, with_outliers(random, rows, width, 3));
  const Held b = floats(kind, shape, normals(random, rows * width, 1));
  const Held out = output(kind, shape);
  Case made = {"width " + std::to_string(width), kind, Unit::exact};
  made.inputs = {a, b};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"attn.residual", 1, nullptr};
    return reinterpret_cast<decltype(&lockstep_add)>(function)(&call, out->get(), a->get(),
                                                               b->get());
  };
  const std::vector<double> as = a->values(), bs = b->values();
  for (size_t i = 0; i < as.size(); ++i) made.exact.push_back(as[i] + bs[i]);
  return made;
}

// --- gather_rows, argmax ------------------------------------------------------------------------

Case gather_case(Kind kind, int64_t entries, int64_t width, const std::vector<int64_t>& ids) {
  Random random(static_cast<uint64_t>(entries));
  std::vector<double> table = normals(random, entries * width, 0.03);
  for (size_t i = 0; i < table.size(); i += 5) table[i] *= 1e-5;
  const auto rows = static_cast<int64_t>(ids.size());
  const Held weight = floats(kind, {entries, width}, table);
  const auto index = std::make_shared<Array>(Array::of_int32({rows}, ids));
  const Held out = output(kind, {rows, width});
  Case made = {std::to_string(entries) + " rows", kind, Unit::exact};
  made.inputs = {index, weight};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"embed", -1, nullptr};
    return reinterpret_cast<decltype(&lockstep_gather_rows)>(function)(&call, out->get(),
                                                                       index->get(), weight->get());
  };
  const std::vector<double> all = weight->values();
  for (const int64_t id : ids)
    for (int64_t i = 0; i < width; ++i)
      made.exact.push_back(all[static_cast<size_t>(id * width + i)]);
  return made;
}

Case argmax_case(Kind kind, int64_t vocabulary) {
  Random random(static_cast<uint64_t>(vocabulary));
  const int64_t rows = 9;
  std::vector<double> logits = normals(random, rows * vocabulary, 3);
  const auto at = [&](int64_t row, int64_t i) -> double& {
    return logits[static_cast<size_t>(row * vocabulary + i)];
  };
  // Largest ones at both ends and within, twice, and a little above another.
  at(0, 0) = at(1, vocabulary - 1) = at(2, vocabulary / 3) = 20;
  at(3, 5) = at(3, vocabulary - 3) = 18;
  at(4, 7) = 16, at(4, vocabulary / 2) = 16.03125;
  at(5, 9) = -40, at(6, vocabulary - 2) = 19;
  const Held x = floats(kind, {rows, vocabulary}, logits);
  const auto out = std::make_shared<Array>(Array::of_int32({rows}));
  Case made = {std::to_string(vocabulary) + " logits", kind, Unit::indices};
  made.inputs = {x};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"token", -1, nullptr};
    return reinterpret_cast<decltype(&lockstep_argmax)>(function)(&call, out->get(), x->get());
  };
  const std::vector<double> all = x->values();
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = all.begin() + row * vocabulary;
    made.exact.push_back(to_double(std::max_element(begin, begin + vocabulary) - begin));
  }
  return made;
}

}  // namespace

std::vector<Case> norm_cases(Kind kind) {
  return {norm_case(kind, {6, 100}, 1, true),    norm_case(kind, {7, 192}, 2, false),
          norm_case(kind, {8, 896}, 3, true),    norm_case(kind, {5, 4096}, 4, true),
          norm_case(kind, {5, 3, 64}, 5, false), norm_case(kind, {4, 7, 16}, 6, false),
          norm_case(kind, {1, 1024}, 7, true)};
}

std::vector<Case> rope_cases(Kind kind) {
  return {rope_case(kind, {1e6, 3, 32, 1000, {0, 1, 2, 3, 4, 5, 6, 7, 30, 200, 511, 999}}, 1),
          rope_case(kind, {1e4, 2, 64, 900, {17, 45, 301, 640, 899}}, 2),
          rope_case(kind, {1e6, 4, 16, 2200, {3, 700, 2048, 2199}}, 3),
          rope_case(kind, {1e4, 1, 8, 40, {21}}, 4)};
}

std::vector<Case> silu_cases(Kind kind) {
  return {silu_case(kind, 7, 300, 1), silu_case(kind, 1, 576, 2), silu_case(kind, 3, 64, 3)};
}

std::vector<Case> add_cases(Kind kind) {
  return {add_case(kind, 6, 200, 1), add_case(kind, 5, 896, 2)};
}

std::vector<Case> gather_cases(Kind kind) {
  return {gather_case(kind, 33000, 24, {5, 32999, 0, 17000, 17000, 32768, 12}),
          gather_case(kind, 50, 100, {49, 3, 3, 26})};
}

std::vector<Case> argmax_cases(Kind kind) {
  return {argmax_case(kind, 1000), argmax_case(kind, 64)};
}

}  // namespace lockstep::other_hand
