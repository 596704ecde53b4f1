// Engines that rotate pairs (2j, 2j + 1) have Q and K in another order of dims than Hugging Face's
// halves. The points have halves, so such tensors are reordered as they are read.
#include "traces/rope_pairs.h"

#include <array>
#include <cstring>

#include "kernels/base/check.h"
#include "probes/digest.h"

namespace lockstep {
namespace {

constexpr std::array kPaired = {&point("attn.q"),      &point("attn.k"),      &point("attn.q_norm"),
                                &point("attn.k_norm"), &point("attn.q_rope"), &point("attn.k_rope"),
                                &point("attn.kv")};

bool is_paired(const Point& p) {
  for (const Point* one : kPaired)
    if (*one == p) return true;
  return false;
}

// Elements of a head, each of `size` bytes.
void put_in_halves(const char* from, char* to, int64_t dim, size_t size) {
  for (int64_t i = 0; i < dim; ++i) {
    const int64_t there = i / 2 + i % 2 * (dim / 2);
    std::memcpy(to + there * size, from + i * size, size);
  }
}

// Pairs (2j, 2j + 1) of a head go to (j, j + dim / 2), bytes as they are.
Tensor in_halves(const RecordedTensor& tensor) {
  const TensorView& view = tensor.data;
  const int64_t dim = view.shape.last(), heads = view.count() / dim;
  // V of attn.kv, [position, k|v, kv head, dim], has no pairs.
  const int64_t of_half = tensor.point->is_cache() ? view.shape[2] : heads;
  const size_t size = size_of(view.dtype);
  const size_t bytes = dim * size;
  Tensor made(view.shape, view.dtype);
  for (int64_t head = 0; head < heads; ++head) {
    const char* from = view.as<const char>() + head * bytes;
    char* to = made.as<char>() + head * bytes;
    if (head / of_half % 2 == 0)
      put_in_halves(from, to, dim, size);
    else
      std::memcpy(to, from, bytes);
  }
  return made;
}

// A trace whose pairs are interleaved, with Q and K in halves. Hashes are of numbers in their
// order, so that a pass without numbers is read with them first.
class TraceInHalves final : public TraceReader {
 public:
  explicit TraceInHalves(TraceReader& trace) : trace_(trace) {}

  const Manifest& manifest() const override { return trace_.manifest(); }
  int passes() const override { return trace_.passes(); }
  bool complete() const override { return trace_.complete(); }
  const std::vector<std::string>& problems() const override { return trace_.problems(); }

  Pass read(int i, bool data) override {
    Pass pass = trace_.read(i, /*data=*/true);
    for (RecordedTensor& tensor : pass.tensors)
      if (is_paired(*tensor.point) && tensor.data.view().empty()) tensor.row_hashes.clear();
    put_pairs_in_halves(pass);
    for (RecordedTensor& tensor : pass.tensors)
      if (!data) tensor.data = {};
    return pass;
  }

 private:
  TraceReader& trace_;
};

}  // namespace

bool has_interleaved_pairs(const Manifest& manifest, const std::string& asked) {
  const auto said = manifest.provenance.find(kRopePairs);
  const std::string word =
      !asked.empty() || said == manifest.provenance.end() ? asked : said->second;
  check(word.empty() || word == "half" || word == "interleaved",
        "the trace says that its {} are '{}', and half or interleaved was wanted", kRopePairs,
        word);
  return word == "interleaved";
}

// Digests are of the numbers in their order, and are made anew.
void put_pairs_in_halves(Pass& pass) {
  for (RecordedTensor& tensor : pass.tensors) {
    const TensorView& view = tensor.data;
    const bool has_heads = view.shape.rank() == (tensor.point->is_cache() ? 4 : 3);
    if (!is_paired(*tensor.point) || view.empty() || !has_heads || view.shape.last() % 2 != 0 ||
        view.count() == 0)
      continue;
    tensor.data = in_halves(tensor);
    tensor.row_hashes = row_hashes_of(tensor.data);
    tensor.digest = tensor.point->is_cache() ? digest_of_rows(tensor.row_hashes, view.count())
                                             : digest_of(tensor.data);
  }
}

AlikePairs::AlikePairs(TraceReader& a, TraceReader& b) : a_(a), b_(b) {
  const bool of_a = has_interleaved_pairs(a.manifest(), ""),
             of_b = has_interleaved_pairs(b.manifest(), "");
  if (of_a && !of_b) halves_of_a_ = std::make_unique<TraceInHalves>(a);
  if (of_b && !of_a) halves_of_b_ = std::make_unique<TraceInHalves>(b);
}

std::string AlikePairs::sentence() const {
  if (!halves_of_a_ && !halves_of_b_) return "";
  return std::string("pairs of Q and K are interleaved in the ") +
         (halves_of_a_ ? "first" : "second") +
         " trace, as it says: they were put in halves before they were compared";
}

}  // namespace lockstep
