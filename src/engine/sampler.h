#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/engine/sampling.h"

namespace lockstep {

// Philox4x32 with 10 rounds: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011. A function of counter and key alone, so that a draw depends on nothing that
// was drawn before or beside it.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// One draw of a request: all of its texts have the same seed, and count their choices from 0.
struct Draw {
  uint64_t choice = 0;
  uint32_t sample = 0;  // which of the request's texts
};

// Uniform in [0, 1), a multiple of 2^-53: key is the seed, counter is (choice, sample, 0).
double uniform(uint64_t seed, Draw draw);

// The probability of every token of the vocabulary: [vocab], adding up to 1, 0 for those that the
// filters took out. In the order and with the arithmetic of Hugging Face's logits processors
// (transformers, generation/logits_process.py), in fp64:
//   1. repetition penalty: the logit of each token in `text` (the prompt's included) is divided by
//      the penalty when it is positive and multiplied by it otherwise, once
//   2. temperature: divides the logits (0: all probability goes to the largest, 3 to 5 are moot)
//   3. top_k: keeps the logits not below the k-th largest, so equals of the k-th stay
//   4. top_p: keeps the fewest of the most likely that reach top_p, of equals the smaller id first
//   5. min_p: keeps what is at least min_p times as likely as the most likely one
// A row whose largest logit is NaN or infinite has no distribution: all goes to its argmax, as
// kernels/argmax.h finds it, so that greedy or not the trouble is seen.
//   logits  [vocab], not empty
// Throws nothing. The same arguments give the same doubles on every machine that rounds as IEEE 754
// says and whose exp() is the same.
std::vector<double> probabilities(std::span<const double> logits, const Sampling& sampling,
                                  std::span<const int32_t> text);

// The first token at which the sum of the probabilities, by id, is over `uniform` times their
// total. The last token with a probability, where rounding keeps the sum below that.
int32_t pick(std::span<const double> probabilities, double uniform);

// The token chosen by what the logits say.
//   logits  [1, vocab], fp32, fp16 or bf16, on the CPU
// Throws Error where there is not exactly one row.
int32_t choose(const TensorView& logits, const Sampling& sampling, std::span<const int32_t> text,
               Draw draw);

// Log-probabilities where a token was chosen, of softmax(logits), before penalty, temperature and
// filters.
struct Logprobs {
  struct Token {
    int32_t token = 0;
    double logprob = 0;  // natural logarithm of its probability
  };

  Token chosen;
  std::vector<Token> top;  // the most likely first, of equals the smaller id
};
//   logits  as in choose(); count: length of `top`, at most the vocabulary
// In fp64; NaN counts as least likely.
Logprobs logprobs_of(const TensorView& logits, int32_t chosen, int64_t count);

}  // namespace lockstep
