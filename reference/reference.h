// The door of the reference library, which the commands that judge open at run time. No torch type
// appears here.
//
// The room is the other side of every comparison. It knows the checkpoint's files and LibTorch, and
// neither the ops nor the model of the engine, nor its reading of config.json where a number
// matters (recipe.h): a mistake would have to be made twice to go unseen.
//
//     oracle      each op alone, in fp64, of inputs that are given: what an op is judged by
//     model       the whole model around scaled_dot_product_attention, in fp64 or rounded: what an
//                 error has become further on, and which tokens follow
//     sharer      the model once more, differentiated: which op's error becomes which of the logits
//     hypotheses  each op computed wrongly in a known way: what a finding looks like
#pragma once

#include <memory>

#include "src/judge/error_sharer.h"
#include "src/judge/hypotheses.h"
#include "src/judge/oracle.h"
#include "src/weights/checkpoint.h"

namespace lockstep {

// dtype: the run's. Weights are rounded to it before they are widened, since the engine multiplies
// by the rounded ones.
struct ReferenceOptions {
  DType dtype = DType::bf16;
  int threads = 0;     // 0: all cores
  int gpu = -1;        // number of the CUDA device that computes; -1: the CPU does
  int64_t memory = 0;  // bytes that bound_memory() leaves of it; 0: all that is free
  // Elements of an oracle's question from which on a device measures its rows, and answers it where
  // the op reads no large weight: the numbers of fewer come sooner from here than the launches are
  // begun that make them there. Products and attention are always answered there.
  int64_t least = 1 << 15;
};

// Opens the checkpoint's model in LibTorch. The checkpoint must outlive what is made of it.
class ReferenceLibrary {
 public:
  virtual ~ReferenceLibrary() = default;
  virtual std::string version() const = 0;  // of LibTorch
  // Whether LibTorch can compute on the CUDA device of that number. The first call loads its CUDA
  // libraries, which takes a second.
  virtual bool has_gpu(int number) const = 0;
  // Has LibTorch take that many bytes of each CUDA device at most, by what that one has, as long as
  // the process lives: what it keeps for its next tensors is given back before that is more. To be
  // called before all else here, and by no other thread meanwhile. Throws Error where LibTorch has
  // been loaded for devices, or cannot.
  virtual void bound_memory(int number, int64_t bytes) = 0;
  // Gives back to that CUDA device the memory that LibTorch keeps there for its next tensors. Any
  // thread may ask, and where LibTorch never used the device nothing happens.
  virtual void free_unused(int number) = 0;
  // The fp64 oracle of each op, weights as cast to `options.dtype`.
  virtual std::unique_ptr<Oracle> oracle(const Checkpoint&, const ReferenceOptions&) = 0;
  // The SDPA model: computes and shows tensors in `compute` (fp32, bf16, fp16, or fp64), on weights
  // first cast to `options.dtype`.
  virtual std::unique_ptr<ReferenceModel> model(const Checkpoint&, const ReferenceOptions&,
                                                DType compute) = 0;
  // Tells how much of the error of the logits each op causes, weights as cast to `options.dtype`.
  virtual std::unique_ptr<ErrorSharer> error_sharer(const Checkpoint&, const ReferenceOptions&) = 0;
  // The ways in which its ops may be computed wrongly, by the oracle's arithmetic.
  virtual std::unique_ptr<Hypotheses> hypotheses(const Checkpoint&, const ReferenceOptions&) = 0;
};

// The only symbol looked up in liblockstep_reference.so. The caller owns nothing.
extern "C" ReferenceLibrary* lockstep_reference();

}  // namespace lockstep
