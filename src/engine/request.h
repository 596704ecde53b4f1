#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "src/engine/sampler.h"

namespace lockstep {

// A request as a user submits it. Tokens are ids below the vocabulary's size; the engine checks
// them in submit().
struct Request {
  std::string name;             // for people; may be empty
  std::vector<int32_t> prompt;  // token ids, at least one
  int64_t max_new = 16;         // tokens to choose, at least one
  std::vector<int32_t> forced;  // decode exactly these instead of the engine's own choices
  // The same of each sample after the first; empty: they choose by themselves.
  std::vector<std::vector<int32_t>> forced_samples;
  std::vector<int32_t> eos;       // ids that end the text; ignored when forced
  std::vector<std::string> stop;  // so do these, once its text has one in it; ignored when forced
  int64_t arrival = 0;            // the step before which the scheduler does not know of it
  Sampling sampling;
  int32_t samples = 1;  // texts to make of the prompt, which is computed once

  // Steps that choose a token: with forced tokens, one after each of them and one after the prompt.
  int64_t steps() const { return forced.empty() ? max_new : std::ssize(forced) + 1; }
  // Those of the longest of its samples, and of all of them together.
  int64_t most_steps() const {
    int64_t most = steps();
    for (const auto& sample : forced_samples) most = std::max(most, std::ssize(sample) + 1);
    return most;
  }
  int64_t all_steps() const {
    int64_t all = forced_samples.empty() ? samples * steps() : steps();
    for (const auto& sample : forced_samples) all += std::ssize(sample) + 1;
    return all;
  }
  // Positions that need a slot: the last token chosen is never fed.
  int64_t max_positions() const { return std::ssize(prompt) + most_steps() - 1; }
};

// Why a text ended; `none` while it goes on.
enum class Ending : uint8_t { none, length, eos, stop };

// A request on its way through the engine.
struct Sequence {
  int32_t id = 0;            // its rows' request
  int32_t root_request = 0;  // the submitted request: itself, or what it was forked from
  int32_t sample = 0;        // which of the texts of `root_request`: 0 is its own
  Request request;
  std::vector<int32_t> tokens;     // prompt, then what was fed or is to be fed next
  std::vector<int32_t> argmax;     // the most likely token at each choice, whatever was chosen
  std::vector<Logprobs> logprobs;  // of each choice, when the request wants them
  int64_t computed = 0;            // positions whose K and V are in its pages
  std::vector<int32_t> pages;      // page i holds positions i * page_size ..
  std::vector<uint64_t> keys;      // of its published pages, in order
  bool starts_with_cached_prefix =
      false;             // enters the next pass with positions that it did not compute there
  bool swapped = false;  // its K and V wait in host memory
  bool finished = false;
  Ending ending = Ending::none;

  int64_t length() const { return std::ssize(tokens); }
  bool prefilling() const {
    return computed + 1 < length() || computed < std::ssize(request.prompt);
  }
};

}  // namespace lockstep
