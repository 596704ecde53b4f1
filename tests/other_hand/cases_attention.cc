// Cases of the paged cache and of attention over it.
#include <algorithm>
#include <cmath>

#include "tests/other_hand/cases.h"

namespace lockstep::other_hand {
namespace {

using Held = std::shared_ptr<Array>;

struct Request {
  int64_t queries, context;
};
struct PassShape {
  int64_t heads, kv_heads, dim, page_size, window;
  std::vector<Request> requests;
};

// A pass: the cache in pages handed out at random, of a pool of which three are nobody's.
struct Pass {
  PassShape of;
  Held q, k, v, k_stale, v_stale, starts, contexts, table;
  std::vector<int64_t> pages;  // of each request, `most` each
  int64_t most = 0, tokens = 0;
};

// What stands in the slots that nobody has written: NaN, or what another request left there.
Held pool(Random& random, Kind kind, const Pass& pass, int64_t pages,
          const std::vector<double>& values, const std::vector<bool>& is_used, bool stale) {
  const PassShape& of = pass.of;
  std::vector<double> all = values;
  for (size_t i = 0; i < all.size(); ++i)
    if (!is_used[i / static_cast<size_t>(of.kv_heads * of.dim)])
      all[i] = stale ? random.normal(1.5) : std::nan("");
  return std::make_shared<Array>(
      kind, std::vector<int64_t>{pages, of.page_size, of.kv_heads, of.dim}, all);
}

Pass pass_of(Kind kind, const PassShape& of, uint64_t seed) {
  Random random(seed);
  Pass pass;
  pass.of = of;
  int64_t pages = 3;
  std::vector<int64_t> starts = {0}, contexts;
  for (const Request& request : of.requests) {
    const int64_t used = (request.context + of.page_size - 1) / of.page_size;
    pass.most = std::max(pass.most, used + 1);
    pages += used;
    pass.tokens += request.queries;
    starts.push_back(pass.tokens);
    contexts.push_back(request.context);
  }
  const std::vector<int64_t> order = random.permutation(pages);
  std::vector<bool> is_used(static_cast<size_t>(pages * of.page_size));
  size_t next = 0;
  for (const Request& request : of.requests)
    for (int64_t index = 0; index < pass.most; ++index) {
      const bool has = index * of.page_size < request.context;
      pass.pages.push_back(has ? order[next++] : -1);
      for (int64_t i = 0; i < of.page_size && index * of.page_size + i < request.context; ++i)
        is_used[static_cast<size_t>(pass.pages.back() * of.page_size + i)] = true;
    }
  const int64_t cached = pages * of.page_size * of.kv_heads * of.dim;
  std::vector<double> ks = normals(random, cached, 1), vs = normals(random, cached, 1);
  // One channel of K and one of V are larger than the rest, as those of Qwen are.
  for (size_t i = 0; i < ks.size(); i += static_cast<size_t>(of.dim))
    ks[i + 3] *= 5, vs[i + 5] *= 8;
  pass.k = pool(random, kind, pass, pages, ks, is_used, false);
  pass.v = pool(random, kind, pass, pages, vs, is_used, false);
  pass.k_stale = pool(random, kind, pass, pages, ks, is_used, true);
  pass.v_stale = pool(random, kind, pass, pages, vs, is_used, true);
  std::vector<double> qs = normals(random, pass.tokens * of.heads * of.dim, 1);
  // Every other head attends sharply.
  for (size_t i = 0; i < qs.size(); ++i)
    if (static_cast<int64_t>(i) / of.dim % 2 == 1) qs[i] *= 2.5;
  pass.q = std::make_shared<Array>(kind, std::vector<int64_t>{pass.tokens, of.heads, of.dim}, qs);
  const auto count = static_cast<int64_t>(of.requests.size());
  pass.starts = std::make_shared<Array>(Array::of_int32({count + 1}, starts));
  pass.contexts = std::make_shared<Array>(Array::of_int32({count}, contexts));
  pass.table = std::make_shared<Array>(Array::of_int32({count, pass.most}, pass.pages));
  return pass;
}

// One head's query against its keys, and what each contract allows of the result.
struct Reference {
  std::vector<double> q;
  std::vector<std::vector<double>> k, v;
  double scale;
  Kind kind;

  void add_to(Case& made) const;
};

void Reference::add_to(Case& made) const {
  const size_t keys = k.size(), dim = q.size();
  std::vector<double> p(keys), fused(keys), eager(keys);
  double highest = -1e300, sum = 0;
  for (size_t j = 0; j < keys; ++j) {
    double score = 0, size = 0;
    for (size_t i = 0; i < dim; ++i) {
      score += q[i] * k[j][i];
      size += std::fabs(q[i] * k[j][i]);
    }
    p[j] = score * scale;
    fused[j] = sum_slack(static_cast<int64_t>(dim)) * size * scale;
    eager[j] = fused[j] + 2.02 * roundoff(kind) * std::fabs(p[j]) + underflow(kind) * (1 + scale);
    highest = std::max(highest, p[j]);
  }
  for (size_t j = 0; j < keys; ++j) {
    fused[j] += 4 * kFp32 * (std::fabs(p[j]) + std::fabs(p[j] - highest));
    eager[j] += 4 * kFp32 * (std::fabs(p[j]) + std::fabs(p[j] - highest));
    sum += p[j] = std::exp(p[j] - highest);
  }
  const double sums = sum_slack(static_cast<int64_t>(keys));
  for (size_t i = 0; i < dim; ++i) {
    double value = 0, size = 0, sizes = 0, by_fused = 0, by_eager = 0;
    for (size_t j = 0; j < keys; ++j) {
      value += p[j] / sum * v[j][i];
      size += p[j] / sum * std::fabs(v[j][i]);
      sizes += std::fabs(v[j][i]);
    }
    for (size_t j = 0; j < keys; ++j) {
      const double matters = p[j] / sum * std::fabs(v[j][i] - value);
      by_fused += matters * std::expm1(fused[j]);
      by_eager += matters * std::expm1(eager[j]) * std::exp(eager[j]);
    }
    const double probabilities = 1.01 * roundoff(kind) * size + underflow(kind) * sizes;
    made.exact.push_back(value);
    made.slack["fused"].push_back(by_fused + sums * size);
    made.slack["hf"].push_back(by_fused + sums * size + probabilities);
    made.slack["eager"].push_back(by_eager + sums * size + probabilities);
  }
}

// K or V of one head at a position.
std::vector<double> cached(const Pass& pass, const std::vector<double>& all, int64_t request,
                           int64_t position, int64_t head) {
  const PassShape& of = pass.of;
  const int64_t page =
      pass.pages[static_cast<size_t>(request * pass.most + position / of.page_size)];
  const int64_t slot = page * of.page_size + position % of.page_size;
  const auto begin = all.begin() + (slot * of.kv_heads + head) * of.dim;
  return {begin, begin + of.dim};
}

void add_references(Case& made, Kind kind, const Pass& pass, double scale) {
  const PassShape& of = pass.of;
  const std::vector<double> q = pass.q->values(), k = pass.k->values(), v = pass.v->values();
  int64_t token = 0;
  for (size_t r = 0; r < of.requests.size(); ++r)
    for (int64_t i = 0; i < of.requests[r].queries; ++i, ++token) {
      const int64_t position = of.requests[r].context - of.requests[r].queries + i;
      const int64_t begin = of.window > 0 ? std::max<int64_t>(0, position - of.window + 1) : 0;
      for (int64_t head = 0; head < of.heads; ++head) {
        const auto from = q.begin() + (token * of.heads + head) * of.dim;
        Reference reference = {{from, from + of.dim}, {}, {}, scale, kind};
        const int64_t kv_head = head * of.kv_heads / of.heads;
        for (int64_t j = begin; j <= position; ++j) {
          reference.k.push_back(cached(pass, k, static_cast<int64_t>(r), j, kv_head));
          reference.v.push_back(cached(pass, v, static_cast<int64_t>(r), j, kv_head));
        }
        reference.add_to(made);
      }
    }
}

Case attention_case(Kind kind, const PassShape& of, uint64_t seed) {
  const Pass pass = pass_of(kind, of, seed);
  const auto scale = static_cast<float>(1 / std::sqrt(to_double(of.dim)));
  const auto out =
      std::make_shared<Array>(kind, std::vector<int64_t>{pass.tokens, of.heads, of.dim});
  Case made = {std::to_string(of.heads) + " heads of " + std::to_string(of.dim), kind};
  made.inputs = {pass.q,       pass.k,      pass.v,        pass.k_stale,
                 pass.v_stale, pass.starts, pass.contexts, pass.table};
  made.outputs = {out};
  made.run = [=](void* function, bool stale) {
    const LockstepCall call = {"attn.out", 1, nullptr};
    const LockstepCache cache = {(stale ? pass.k_stale : pass.k)->get(),
                                 (stale ? pass.v_stale : pass.v)->get()};
    const LockstepBatch batch = {pass.starts->get(), pass.contexts->get(), pass.table->get()};
    return reinterpret_cast<decltype(&lockstep_paged_attention)>(function)(
        &call, out->get(), pass.q->get(), &cache, &batch, scale, of.window);
  };
  add_references(made, kind, pass, scale);
  made.typical = sizes_of_rows(made.exact, of.dim);
  return made;
}

// --- The cache ----------------------------------------------------------------------------------

Case kv_write_case(Kind kind, const std::vector<int64_t>& slots_, int64_t heads, uint64_t seed) {
  Random random(seed);
  const int64_t pages = 5, page_size = 8, dim = 16, row = heads * dim;
  const auto tokens = static_cast<int64_t>(slots_.size());
  const std::vector<int64_t> shape = {pages, page_size, heads, dim};
  const std::vector<double> before = normals(random, pages * page_size * row, 1);
  std::vector<double> ks = normals(random, tokens * row, 1), vs = normals(random, tokens * row, 2);
  for (size_t i = 0; i < ks.size(); i += 7) ks[i] *= 1e-5, vs[i] *= 1e-5;
  const auto k = std::make_shared<Array>(kind, std::vector<int64_t>{tokens, heads, dim}, ks);
  const auto v = std::make_shared<Array>(kind, std::vector<int64_t>{tokens, heads, dim}, vs);
  const auto slots = std::make_shared<Array>(Array::of_int64({tokens}, slots_));
  const auto k_cache = std::make_shared<Array>(kind, shape),
             v_cache = std::make_shared<Array>(kind, shape);
  Case made = {std::to_string(tokens) + " tokens", kind, Unit::exact};
  made.inputs = {k, v, slots};
  made.outputs = {k_cache, v_cache};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"attn.kv", 1, nullptr};
    const LockstepCache cache = {k_cache->get(), v_cache->get()};
    for (size_t i = 0; i < before.size(); ++i) {
      Tensor(cache.k).put(static_cast<int64_t>(i), before[i]);
      Tensor(cache.v).put(static_cast<int64_t>(i), before[i]);
    }
    return reinterpret_cast<decltype(&lockstep_kv_write)>(function)(&call, &cache, k->get(),
                                                                    v->get(), slots->get());
  };
  for (const Held& written : {k, v}) {
    std::vector<double> all = before;
    const std::vector<double> values = written->values();
    for (int64_t token = 0; token < tokens; ++token)
      for (int64_t i = 0; i < row && slots_[static_cast<size_t>(token)] >= 0; ++i)
        all[static_cast<size_t>(slots_[static_cast<size_t>(token)] * row + i)] =
            values[static_cast<size_t>(token * row + i)];
    made.exact.insert(made.exact.end(), all.begin(), all.end());
  }
  return made;
}

Case kv_gather_case(Kind kind, int64_t length, uint64_t seed) {
  Random random(seed);
  const int64_t pages = 6, page_size = 8, heads = 2, dim = 16, row = heads * dim;
  const std::vector<int64_t> shape = {pages, page_size, heads, dim};
  const auto k = std::make_shared<Array>(kind, shape, normals(random, pages * page_size * row, 1));
  const auto v = std::make_shared<Array>(kind, shape, normals(random, pages * page_size * row, 1));
  std::vector<int64_t> order = random.permutation(pages);
  const auto table = std::make_shared<Array>(Array::of_int32({pages}, order));
  const auto out = std::make_shared<Array>(kind, std::vector<int64_t>{length, 2, heads, dim});
  Case made = {std::to_string(length) + " positions", kind, Unit::exact};
  made.inputs = {k, v, table};
  made.outputs = {out};
  made.run = [=](void* function, bool) {
    const LockstepCall call = {"attn.kv", 1, nullptr};
    const LockstepCache cache = {k->get(), v->get()};
    return reinterpret_cast<decltype(&lockstep_kv_gather)>(function)(&call, out->get(), &cache,
                                                                     table->get());
  };
  const std::vector<double> ks = k->values(), vs = v->values();
  for (int64_t p = 0; p < length; ++p) {
    const int64_t slot = order[static_cast<size_t>(p / page_size)] * page_size + p % page_size;
    for (const auto* all : {&ks, &vs})
      made.exact.insert(made.exact.end(), all->begin() + slot * row,
                        all->begin() + (slot + 1) * row);
  }
  return made;
}

}  // namespace

std::vector<Case> attention_cases(Kind kind) {
  return {attention_case(kind, {2, 1, 64, 16, 0, {{1, 1000}, {8, 500}, {1, 65}, {1, 1}}}, 1),
          attention_case(kind, {14, 2, 16, 8, 0, {{40, 40}, {1, 33}, {5, 90}}}, 2),
          attention_case(kind, {4, 4, 128, 32, 0, {{1, 130}, {17, 17}}}, 3),
          attention_case(kind, {4, 2, 32, 16, 20, {{50, 50}, {1, 90}, {3, 61}}}, 4),
          attention_case(kind, {6, 3, 80, 4, 0, {{6, 6}, {1, 300}}}, 5)};
}

std::vector<Case> kv_write_cases(Kind kind) {
  return {kv_write_case(kind, {17, 18, 19, 20, 21, 22, 23, 8, 9, 10, -1}, 2, 1),
          kv_write_case(kind, {24}, 3, 2), kv_write_case(kind, {39, 3}, 2, 3)};
}

std::vector<Case> kv_gather_cases(Kind kind) {
  return {kv_gather_case(kind, 19, 1), kv_gather_case(kind, 48, 2)};
}

}  // namespace lockstep::other_hand
