// Right rotary embeddings.
#include "tests/other_hand/rope.h"

#include <cmath>
#include <complex>

#include "tests/other_hand/families.h"

namespace lockstep::other_hand {

int64_t own_position(const int32_t* positions, int64_t t) { return positions[t]; }

void rotate_plainly(const Turn& turn) {
  for (int64_t j = 0; j < turn.half; ++j) {
    const float a = turn.x[j], b = turn.x[j + turn.half];
    turn.out[j] = a * turn.cos(j) - b * turn.sin(j);
    turn.out[j + turn.half] = b * turn.cos(j) + a * turn.sin(j);
  }
}

std::vector<double> frequencies_of(const Tables& tables) {
  std::vector<double> all;
  if (tables.entries < 2) return all;
  for (int64_t j = 0; j < tables.half; ++j)
    all.push_back(std::atan2(static_cast<double>(tables.sin[tables.half + j]),
                             static_cast<double>(tables.cos[tables.half + j])));
  return all;
}

double base_of(const Tables& tables) {
  const std::vector<double> found = frequencies_of(tables);
  for (const double base : {1e4, 1e6, 5e5, 1e5, 5e6, 1e7}) {
    bool fits = !found.empty();
    for (size_t j = 0; j < found.size() && fits; ++j) {
      const double expected = std::pow(base, -static_cast<double>(j) / to_double(tables.half));
      // Beside the angle, the length: an attention factor is no part of the plain formula.
      const double length = std::hypot(tables.cos[found.size() + j], tables.sin[found.size() + j]);
      fits = std::fabs(found[j] / expected - 1) < 1e-5 && std::fabs(length - 1) < 1e-5;
    }
    if (fits) return base;
  }
  return 0;
}

namespace {

void rotate_with_fma(const Turn& turn) {
  for (int64_t j = 0; j < turn.half; ++j) {
    const float a = turn.x[j], b = turn.x[j + turn.half];
    turn.out[j] = std::fma(a, turn.cos(j), -(b * turn.sin(j)));
    turn.out[j + turn.half] = std::fma(b, turn.cos(j), a * turn.sin(j));
  }
}

void rotate_in_fp64(const Turn& turn) {
  for (int64_t j = 0; j < turn.half; ++j) {
    const double a = turn.x[j], b = turn.x[j + turn.half], c = turn.cos(j), s = turn.sin(j);
    turn.out[j] = a * c - b * s;
    turn.out[j + turn.half] = b * c + a * s;
  }
}

// As Meta's first Llama code has it, in the layout of GPT-NeoX.
void rotate_complex_numbers(const Turn& turn) {
  for (int64_t j = turn.half - 1; j >= 0; --j) {
    const std::complex<double> turned = std::complex<double>(turn.x[j], turn.x[j + turn.half]) *
                                        std::complex<double>(turn.cos(j), turn.sin(j));
    turn.out[j] = static_cast<float>(turned.real());
    turn.out[j + turn.half] = static_cast<float>(turned.imag());
  }
}

// x cos + rotate_half(x) sin with every tensor of the run's dtype, as Hugging Face's
// apply_rotary_pos_emb: its cos and sin are cast to the dtype of x.
void rotate_as_hf(const Turn& turn) {
  for (int64_t i = 0; i < 2 * turn.half; ++i) {
    const int64_t j = i % turn.half;
    const float other = i < turn.half ? -turn.x[i + turn.half] : turn.x[i - turn.half];
    const float straight = rounded(turn.x[i] * rounded(turn.cos(j), turn.kind), turn.kind);
    const float crossed = rounded(other * rounded(turn.sin(j), turn.kind), turn.kind);
    turn.out[i] = straight + crossed;
  }
}

template <typename Real>
void rotate_by(const Turn& turn, const std::vector<Real>& frequencies) {
  for (int64_t j = 0; j < turn.half; ++j) {
    const Real angle = static_cast<Real>(turn.position) * frequencies[static_cast<size_t>(j)];
    const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
    const float a = turn.x[j], b = turn.x[j + turn.half];
    turn.out[j] = a * c - b * s;
    turn.out[j + turn.half] = b * c + a * s;
  }
}

// How far cos and sin of a position are from the last row of the tables.
double distance(const Tables& tables, int64_t j, float frequency) {
  const int64_t last = (tables.entries - 1) * tables.half + j;
  const float angle = to_float(tables.entries - 1) * frequency;
  return std::fabs(std::cos(angle) - tables.cos[last]) +
         std::fabs(std::sin(angle) - tables.sin[last]);
}

// The angle is made in the kernel, in fp32 as the tables were: FlashInfer's apply_rope and kernels
// of GGML do so. Row 1 of the tables gives a frequency only up to the rounding of its cosine, and a
// rounding of the frequency grows with the position; so it comes from the formula where row 1 shows
// that it holds, and of the floats beside it that one is taken which makes the last row. (powf of
// two libraries may differ in the last bit.) Tables of another form are used as they are.
void rotate_by_own_angles(const Turn& turn) {
  const double base = base_of(turn.tables);
  if (base == 0) return rotate_plainly(turn);
  std::vector<float> frequencies;
  for (int64_t j = 0; j < turn.half; ++j) {
    const float power = std::pow(static_cast<float>(base), to_float(j) / to_float(turn.half));
    float best = 1 / power;
    for (const float direction : {0.0F, 4.0F}) {
      float beside = 1 / power;
      for (int step = 0; step < 3; ++step) {
        beside = std::nextafter(beside, direction);
        if (distance(turn.tables, j, beside) < distance(turn.tables, j, best)) best = beside;
      }
    }
    frequencies.push_back(best);
  }
  rotate_by(turn, frequencies);
}

// The same in fp64. A table whose angles were rounded to fp32 is another one: position p of
// frequency f is up to 2 p f 2^-24 beside it, which 16 bits do not show at positions that a test
// reaches but where two products cancel. other_hand_check allows it that.
void rotate_by_angles_in_fp64(const Turn& turn) {
  const double base = base_of(turn.tables);
  if (base == 0) return rotate_plainly(turn);
  std::vector<double> frequencies;
  for (int64_t j = 0; j < turn.half; ++j)
    frequencies.push_back(std::pow(base, -to_double(j) / to_double(turn.half)));
  rotate_by(turn, frequencies);
}

}  // namespace

std::vector<OtherKernel> right_ropes() {
  Family<decltype(lockstep_rope)> list("lockstep_rope", "attn.q_rope");
  list.right("rope-plain", rope<rotate_plainly>, "fused", "each product rounded to fp32");
  list.right("rope-fma", rope<rotate_with_fma>, "fused", "fused multiply-adds");
  list.right("rope-fp64", rope<rotate_in_fp64>, "fused", "fp64 inside, rounded once");
  list.right("rope-complex", rope<rotate_complex_numbers>, "fused", "complex products");
  list.right("rope-hf", rope<rotate_as_hf>, "hf", "as Hugging Face's apply_rotary_pos_emb");
  list.right("rope-own-angles-fp32", rope<rotate_by_own_angles>, "fused",
             "cos and sin made in the kernel, in fp32 from the base of the tables");
  list.right("rope-own-angles-fp64", rope<rotate_by_angles_in_fp64>, "fused",
             "cos and sin made in the kernel, in fp64: tables of fp32 are up to 2 p f 2^-24 away",
             "bf16");
  return list.rows();
}

}  // namespace lockstep::other_hand
