// Wrong rotary embeddings.
#include <cmath>

#include "tests/other_hand/families.h"
#include "tests/other_hand/rope.h"

namespace lockstep::other_hand {
namespace {

// --- The layout ---------------------------------------------------------------------------------

// Neighbours are pairs: GPT-J's layout where GPT-NeoX's is meant (vllm#747, vllm#941).
void rotate_neighbours(const Turn& turn) {
  for (int64_t j = 0; j < turn.half; ++j) {
    const float a = turn.x[2 * j], b = turn.x[2 * j + 1];
    turn.out[2 * j] = a * turn.cos(j) - b * turn.sin(j);
    turn.out[2 * j + 1] = b * turn.cos(j) + a * turn.sin(j);
  }
}

void rotate_backwards(const Turn& turn) {
  for (int64_t j = 0; j < turn.half; ++j) {
    const float a = turn.x[j], b = turn.x[j + turn.half];
    turn.out[j] = a * turn.cos(j) + b * turn.sin(j);
    turn.out[j + turn.half] = b * turn.cos(j) - a * turn.sin(j);
  }
}

// In place and one half after the other: the second half reads what the first one wrote.
void rotate_over_itself(const Turn& turn) {
  rotate_plainly(turn);
  for (int64_t j = 0; j < turn.half; ++j) {
    const auto written = static_cast<float>(nearest(turn.out[j], turn.kind));
    turn.out[j + turn.half] = turn.x[j + turn.half] * turn.cos(j) + written * turn.sin(j);
  }
}

// A partial_rotary_factor of 0.5 that belongs to another model.
void rotate_half_of_the_dims(const Turn& turn) {
  rotate_plainly(turn);
  for (int64_t j = turn.half / 2; j < turn.half; ++j) {
    turn.out[j] = turn.x[j];
    turn.out[j + turn.half] = turn.x[j + turn.half];
  }
}

void rotate_twice(const Turn& turn) {
  rotate_plainly(turn);
  std::vector<float> once;
  for (int64_t i = 0; i < 2 * turn.half; ++i) once.push_back(static_cast<float>(turn.out[i]));
  Turn again = turn;
  again.x = once.data();
  rotate_plainly(again);
}

// A loop over heads that ends one too early.
void rotate_all_heads_but_the_last(const Turn& turn) {
  if (turn.head < turn.heads - 1) return rotate_plainly(turn);
  std::copy(turn.x, turn.x + 2 * turn.half, turn.out);
}

void rotate_by_next_frequency(const Turn& turn) {
  for (int64_t j = 0; j < turn.half; ++j) {
    const int64_t next = std::min(j + 1, turn.half - 1);
    const float a = turn.x[j], b = turn.x[j + turn.half];
    turn.out[j] = a * turn.cos(next) - b * turn.sin(next);
    turn.out[j + turn.half] = b * turn.cos(next) + a * turn.sin(next);
  }
}

// --- The angles ---------------------------------------------------------------------------------

// Every angle further by `off(position, frequency, j / half)`, whatever the tables were made of.
template <typename Off>
void rotate_further(const Turn& turn, Off off) {
  const std::vector<double> frequencies = frequencies_of(turn.tables);
  if (frequencies.empty()) return rotate_plainly(turn);
  for (int64_t j = 0; j < turn.half; ++j) {
    const double by = off(to_double(turn.position), frequencies[static_cast<size_t>(j)],
                          to_double(j) / to_double(turn.half));
    const double c = turn.cos(j) * std::cos(by) - turn.sin(j) * std::sin(by);
    const double s = turn.sin(j) * std::cos(by) + turn.cos(j) * std::sin(by);
    const double a = turn.x[j], b = turn.x[j + turn.half];
    turn.out[j] = a * c - b * s;
    turn.out[j + turn.half] = b * c + a * s;
  }
}

// EleutherAI/gpt-neox#1003, huggingface/transformers#25681: the angle in the dtype of the model.
void rotate_by_angles_in_bf16(const Turn& turn) {
  rotate_further(turn,
                 [](double p, double f, double) { return nearest(p * f, Kind::bf16) - p * f; });
}

void rotate_by_angles_in_fp16(const Turn& turn) {
  rotate_further(turn,
                 [](double p, double f, double) { return nearest(p * f, Kind::fp16) - p * f; });
}

void rotate_by_frequencies_in_bf16(const Turn& turn) {
  rotate_further(turn, [](double p, double f, double) { return p * (nearest(f, Kind::bf16) - f); });
}

// huggingface/candle#3520: positions as bf16 has them, of which those over 256 are few.
void rotate_by_positions_in_bf16(const Turn& turn) {
  rotate_further(turn, [](double p, double f, double) { return (nearest(p, Kind::bf16) - p) * f; });
}

// rope_theta left out of the configuration: 10000, or 1e6 where that is right.
void rotate_with_other_base(const Turn& turn) {
  const std::vector<double> all = frequencies_of(turn.tables);
  const bool is_small = all.size() > 1 && std::pow(all[1], -to_double(turn.half)) < 3e4;
  rotate_further(turn, [is_small](double p, double f, double part) {
    return p * (std::pow(is_small ? 1e6 : 1e4, -part) - f);
  });
}

// rope_theta read as a bf16: 999424 for 1e6, 9984 for 10000.
void rotate_with_base_in_bf16(const Turn& turn) {
  const std::vector<double> all = frequencies_of(turn.tables);
  const double base = all.size() > 1 ? std::pow(all[1], -to_double(turn.half)) : 1;
  const double ratio = nearest(std::round(base / 100) * 100, Kind::bf16) / base;
  rotate_further(turn, [ratio](double p, double f, double part) {
    return p * f * (std::pow(ratio, -part) - 1);
  });
}

// FlashInfer takes tables in fp32 alone since those of 16 bits were found wanting
// (flashinfer#585). In bf16 runs this is what Hugging Face does, and no error.
void rotate_by_tables_in_bf16(const Turn& turn) {
  for (int64_t j = 0; j < turn.half; ++j) {
    const double c = nearest(turn.cos(j), Kind::bf16), s = nearest(turn.sin(j), Kind::bf16);
    const double a = turn.x[j], b = turn.x[j + turn.half];
    turn.out[j] = a * c - b * s;
    turn.out[j + turn.half] = b * c + a * s;
  }
}

void rotate_and_truncate(const Turn& turn) {
  rotate_plainly(turn);
  for (int64_t i = 0; i < 2 * turn.half; ++i) turn.out[i] = truncated(turn.out[i], turn.kind);
}

// --- The positions ------------------------------------------------------------------------------

int64_t one_further(const int32_t* positions, int64_t t) { return positions[t] + 1; }
int64_t one_before(const int32_t* positions, int64_t t) { return positions[t] - 1; }
int64_t in_8_bits(const int32_t* positions, int64_t t) { return positions[t] % 256; }
int64_t within_2048(const int32_t* positions, int64_t t) { return positions[t] % 2048; }
int64_t of_first_token(const int32_t* positions, int64_t) { return positions[0]; }
// The row of the batch: right in the prefill of one request, wrong in all that follows.
int64_t row_of_batch(const int32_t*, int64_t t) { return t; }

}  // namespace

std::vector<OtherKernel> wrong_ropes() {
  Family<decltype(lockstep_rope)> list("lockstep_rope", "attn.q_rope");
  list.wrong("rope-interleaved", rope<rotate_neighbours>, 59000, "neighbours are rotated as pairs");
  list.wrong("rope-backwards", rope<rotate_backwards>, 490, "the sine has the wrong sign");
  list.wrong("rope-over-itself", rope<rotate_over_itself>, 380,
             "in place: the second half reads the first one's result");
  list.wrong("rope-half-of-the-dims", rope<rotate_half_of_the_dims>, 460,
             "the slower half of the frequencies does not rotate");
  list.wrong("rope-twice", rope<rotate_twice>, 500, "rotated twice");
  list.wrong("rope-last-head-unrotated", rope<rotate_all_heads_but_the_last>, 510,
             "the last head is left as it was");
  list.wrong("rope-next-frequency", rope<rotate_by_next_frequency>, 510,
             "each pair has its neighbour's frequency");
  list.wrong("rope-angles-in-bf16", rope<rotate_by_angles_in_bf16>, 320,
             "angles rounded to bf16 before cosine and sine");
  list.wrong("rope-angles-in-fp16", rope<rotate_by_angles_in_fp16>, 210,
             "angles rounded to fp16 before cosine and sine", {.needs = "positions over 10"});
  list.wrong("rope-frequencies-in-bf16", rope<rotate_by_frequencies_in_bf16>, 220,
             "frequencies rounded to bf16");
  list.wrong("rope-positions-in-bf16", rope<rotate_by_positions_in_bf16>, 410,
             "positions rounded to bf16", {.needs = "positions over 256"});
  list.wrong("rope-other-base", rope<rotate_with_other_base>, 490,
             "frequencies of another base (1e4 for 1e6, or the other way round)");
  list.wrong("rope-base-in-bf16", rope<rotate_with_base_in_bf16>, 14,
             "the base rounded to bf16: 0.06 % or 0.16 % off", {.needs = "positions over 300"});
  list.wrong("rope-tables-in-bf16", rope<rotate_by_tables_in_bf16>, 5.1,
             "cosines and sines rounded to bf16", {.dtypes = "fp16,fp32"});
  list.wrong("rope-truncated-store", rope<rotate_and_truncate>, 0.5,
             "the store cuts off instead of rounding",
             {.dtypes = "bf16,fp16", .needs = "held to fused"});
  list.wrong("rope-position-one-further", rope<rotate_plainly, one_further>, 230,
             "the position after the token's",
             {.needs = "a table with more rows than the last position"});
  list.wrong("rope-position-one-before", rope<rotate_plainly, one_before>, 230,
             "the position before the token's");
  list.wrong("rope-positions-in-8-bits", rope<rotate_plainly, in_8_bits>, 500,
             "positions modulo 256", {.needs = "positions over 255"});
  list.wrong("rope-positions-within-2048", rope<rotate_plainly, within_2048>, 490,
             "positions modulo 2048", {.needs = "positions over 2047"});
  list.wrong("rope-position-of-first-token", rope<rotate_plainly, of_first_token>, 510,
             "every token of a pass has the first one's position",
             {.needs = "a pass with several tokens"});
  list.wrong("rope-row-of-batch", rope<rotate_plainly, row_of_batch>, 510,
             "the row in the pass instead of the position", {.needs = "a decode pass"});
  return list.rows();
}

}  // namespace lockstep::other_hand
