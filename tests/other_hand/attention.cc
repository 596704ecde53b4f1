#include "tests/other_hand/attention.h"

#include <algorithm>

namespace lockstep::other_hand {

Keys sees_causally(const Seat& seat) {
  const int64_t begin = seat.window > 0 ? seat.position - seat.window + 1 : 0;
  return {std::max<int64_t>(begin, 0), seat.position + 1};
}

int64_t grouped(int64_t head, int64_t heads, int64_t kv_heads) { return head / (heads / kv_heads); }

int64_t own_page(const Pages& pages, int64_t request, int64_t index) {
  return pages.own(request, index);
}

int64_t own_query(const Seat& seat) { return seat.token; }

std::vector<float> scores(const Query& query, Dot* dot) {
  std::vector<float> all(static_cast<size_t>(query.keys));
  for (int64_t j = 0; j < query.keys; ++j)
    all[static_cast<size_t>(j)] =
        static_cast<float>(dot(query.q, query.key(j), query.dim, query.kind)) * query.scale;
  return all;
}

namespace {

// Scales what there is to a new maximum.
void raise_maximum(Partial& state, const Style& style, float maximum) {
  const float by = style.exp(state.maximum - maximum);
  state.maximum = maximum;
  if (!style.forget_sum) state.sum *= by;
  if (style.forget_output) return;
  for (float& value : state.output) value *= by;
}

void add_key(Partial& state, const Query& query, const Style& style, float score,
             const float* value) {
  const float weight = style.exp(score - state.maximum);
  const float stored = style.round_probabilities ? rounded(weight, query.kind) : weight;
  state.sum += style.sum_rounded ? stored : weight;
  for (int64_t i = 0; i < query.dim; ++i) state.output[static_cast<size_t>(i)] += stored * value[i];
  if (style.keep == nullptr) return;
  for (float& kept : state.output) kept = static_cast<float>(style.keep(kept, query.kind));
}

}  // namespace

Partial walk(const Query& query, const Style& style, int64_t begin, int64_t end) {
  Partial state;
  state.output.assign(static_cast<size_t>(query.dim), 0);
  std::vector<float> scored(static_cast<size_t>(style.block));
  const int64_t blocks = (end - begin + style.block - 1) / style.block;
  for (int64_t turn = 0; turn < blocks; ++turn) {
    const int64_t block = style.backward ? blocks - 1 - turn : turn;
    const int64_t from = begin + block * style.block, to = std::min(from + style.block, end);
    float highest = -std::numeric_limits<float>::infinity();
    for (int64_t j = from; j < to; ++j) {
      float score = static_cast<float>(style.dot(query.q, query.key(j), query.dim, query.kind)) *
                    (query.scale * style.factor);
      if (style.score != nullptr) score = style.score(score);
      scored[static_cast<size_t>(j - from)] = score;
      highest = std::max(highest, score);
    }
    if (state.maximum == -std::numeric_limits<float>::infinity()) state.maximum = highest;
    if (highest > state.maximum + style.slack) raise_maximum(state, style, highest);
    const bool stale = style.stale_value && block > 0 && to - from < style.block;
    for (int64_t j = to - 1; j >= from; --j)
      add_key(state, query, style, scored[static_cast<size_t>(j - from)],
              query.value(stale ? j - style.block : j));
    if (style.keep_blocks == nullptr) continue;
    for (float& kept : state.output) kept = static_cast<float>(style.keep_blocks(kept, query.kind));
  }
  return state;
}

Partial together(const std::vector<Partial>& parts, float (*exp)(float)) {
  Partial all;
  all.output.assign(parts.front().output.size(), 0);
  for (const Partial& part : parts) all.maximum = std::max(all.maximum, part.maximum);
  for (const Partial& part : parts) {
    const float weight = exp(part.maximum - all.maximum);
    all.sum += weight * part.sum;
    for (size_t i = 0; i < all.output.size(); ++i) all.output[i] += weight * part.output[i];
  }
  return all;
}

void divide(const Partial& all, double* out) {
  for (size_t i = 0; i < all.output.size(); ++i) out[i] = all.output[i] / all.sum;
}

namespace {

// The keys or values of one head of a request, in the order of the pages that are looked up.
std::vector<float> gathered(const Plan& plan, const Tensor& pool, const Pages& pages,
                            int64_t request, int64_t head, int64_t kv_heads, int64_t dim) {
  const int64_t used = pages.used(request);
  std::vector<float> values(static_cast<size_t>(used * pages.page_size * dim));
  for (int64_t index = 0; index < used; ++index) {
    const int64_t page = plan.page(pages, request, index);
    for (int64_t offset = 0; offset < pages.page_size; ++offset) {
      const int64_t slot = page * pages.page_size + offset;
      const int64_t place = index * pages.page_size + offset;
      pool.load((slot * kv_heads + head) * dim, dim, values.data() + place * dim);
    }
  }
  return values;
}

struct Pass {
  const Plan& plan;
  Tensor out, q, k, v;
  Pages pages;
  const int32_t* starts;
  float scale;
  int64_t window;
  int64_t tokens() const { return q.axis(0); }
  int64_t heads() const { return q.axis(1); }
  int64_t dim() const { return q.axis(2); }
};

Seat seat_of(const Pass& pass, int64_t request, int64_t token) {
  const int64_t first = pass.starts[request], queries = pass.starts[request + 1] - first;
  const int64_t context = pass.pages.contexts[request];
  const int64_t before = request == 0 ? context : pass.pages.contexts[request - 1];
  return {request,
          pass.pages.requests,
          token,
          first,
          queries,
          context,
          before,
          context - (first + queries - token),
          pass.pages.page_size,
          pass.window};
}

// One head of one request.
void attend_head(const Pass& pass, int64_t request, int64_t head) {
  const Plan& plan = pass.plan;
  const int64_t dim = pass.dim(), kv_heads = pass.k.axis(2);
  const int64_t kv_head = plan.kv_head(head, pass.heads(), kv_heads);
  std::vector<float> k = gathered(plan, pass.k, pass.pages, request, kv_head, kv_heads, dim);
  std::vector<float> v =
      plan.value_is_key ? k : gathered(plan, pass.v, pass.pages, request, kv_head, kv_heads, dim);
  if (plan.change_k != nullptr) plan.change_k(k);
  if (plan.change_v != nullptr) plan.change_v(v);
  std::vector<float> q(static_cast<size_t>(dim));
  std::vector<double> result(q.size());
  for (int64_t token = pass.starts[request]; token < pass.starts[request + 1]; ++token) {
    const Seat seat = seat_of(pass, request, token);
    const int64_t reach = pass.pages.used(request) * pass.pages.page_size;
    Keys keys = plan.sees(seat);
    keys = {std::clamp<int64_t>(keys.begin, 0, reach), std::clamp<int64_t>(keys.end, 0, reach)};
    const int64_t row = std::clamp<int64_t>(plan.query(seat), 0, pass.tokens() - 1);
    pass.q.load((row * pass.heads() + head) * dim, dim, q.data());
    std::fill(result.begin(), result.end(), 0);
    if (keys.end > keys.begin)
      plan.attend({q.data(), k.data() + keys.begin * dim, v.data() + keys.begin * dim,
                   keys.end - keys.begin, dim, keys.begin, pass.scale, pass.q.kind()},
                  result.data());
    for (int64_t i = 0; i < dim; ++i) {
      const double value = result[static_cast<size_t>(i)];
      pass.out.put((token * pass.heads() + head) * dim + i,
                   plan.truncate ? truncated(value, pass.out.kind()) : value);
    }
  }
}

}  // namespace

const char* run_attention(const Plan& plan, const DLTensor* out, const DLTensor* q,
                          const LockstepCache* cache, const LockstepBatch* batch, float scale,
                          int64_t window) {
  if (const char* why = refused({out, q, cache->k, cache->v})) return why;
  const DLTensor* table = batch->page_table;
  const Pages pages = {indices(table), indices(batch->context_length), table->shape[0],
                       table->shape[1], cache->k->shape[1]};
  const Pass pass = {plan,
                     Tensor(out),
                     Tensor(q),
                     Tensor(cache->k),
                     Tensor(cache->v),
                     pages,
                     indices(batch->query_start),
                     plan.scale == nullptr ? scale : plan.scale(scale, q->shape[2]),
                     window};
  for (int64_t request = 0; request < pages.requests; ++request) {
    if (pass.starts[request] == pass.starts[request + 1]) continue;
    for (int64_t head = 0; head < pass.heads(); ++head) attend_head(pass, request, head);
  }
  return nullptr;
}

}  // namespace lockstep::other_hand
