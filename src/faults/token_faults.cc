// Bugs of the two ends of the model: which token goes in, and which comes out.
//
// Ids are changed in the batch, before anything is computed of them, in the op that reads the
// embedding, or in the op that chooses. The first of these shows in what the trace says was fed;
// with the others it says what was asked for, and the judge must see that the numbers are of
// another token.
#include <map>

#include "src/faults/seeds.h"

namespace lockstep {
namespace {

void seed_token_repeated(const Seams& seams, const FaultRequest&) {
  // The last token that the prompt's passes fed, by request; the engine shows what it really feeds.
  const auto last = std::make_shared<std::map<int32_t, int32_t>>();
  add_to(seams.hooks.before_pass, [last](Batch& batch) {
    for (size_t t = 0; t < batch.info.rows.size(); ++t) {
      PassRow& row = batch.info.rows[t];
      if (row.phase == Phase::prefill)
        (*last)[row.row.request] = row.token;
      else if (const auto prompt = last->find(row.row.request); prompt != last->end())
        batch.tokens.as<int32_t>()[t] = row.token = prompt->second;
    }
  });
}

void seed_embedding_of_next_id(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::gather_rows, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView index,
            TensorView table) {
           if (context.point != "embed") return inner(context, out, index, table);
           const Tensor wrong = copy_of(index);
           for (int64_t t = 0; t < index.count(); ++t) {
             int32_t& id = wrong.as<int32_t>()[t];
             id = static_cast<int32_t>((id + 1) % table.rows());
           }
           inner(context, out, wrong, table);
         });
}

void seed_argmax_takes_runner_up(const Seams& seams, const FaultRequest& request) {
  inject(seams, &Ops::argmax, request,
         [](const auto& inner, const OpContext& context, TensorView out, TensorView logits) {
           inner(context, out, logits);
           const int64_t vocab = logits.row_size();
           for (int64_t t = 0; t < logits.rows(); ++t) {
             int32_t& token = out.as<int32_t>()[t];
             const int32_t best = token;
             token = best == 0 ? 1 : 0;
             for (int32_t i = 0; i < vocab; ++i)
               if (i != best && get(logits, t * vocab + i) > get(logits, t * vocab + token))
                 token = i;
           }
         });
}

constexpr Fault kTokenRows[] = {
    {"token-repeated",
     "embed",
     "decode is fed the prompt's last token again",
     "a decode pass",
     {},
     always,
     seed_token_repeated,
     false},
    {"embedding-of-next-id",
     "embed",
     "a token gets the embedding of the id after its own",
     "any run",
     {},
     always,
     seed_embedding_of_next_id,
     false},
    {"argmax-takes-runner-up",
     "token",
     "the second largest logit is chosen",
     "any run",
     {},
     always,
     seed_argmax_takes_runner_up,
     false},
};

}  // namespace

constinit const std::span<const Fault> kTokenFaults = kTokenRows;

}  // namespace lockstep
