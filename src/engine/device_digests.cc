#include "src/engine/device_digests.h"

#include <algorithm>
#include <span>

#include "kernels/check.h"

namespace lockstep {
namespace {

constexpr int64_t kHash = sizeof(uint64_t);
constexpr size_t kTogether = 64;       // tensors of a launch: of four layers or so
constexpr size_t kCachesTogether = 8;  // of a launch of their own

bool is_cache(const Point& p) { return p.op == OpKind::cache; }
bool is_of_logits(const Point& p) { return p == point("logits") || p == point("token"); }

}  // namespace

DeviceDigests::DeviceDigests(const Model& model, const Batch& arguments,
                             const std::vector<KvCache>& caches, Probe& seen, Lifetime lifetime)
    : model_(model), arguments_(arguments), caches_(caches), seen_(seen), lifetime_(lifetime) {
  const DigestRing* ring = seen.digests();
  check(ring != nullptr, "digests were to be made for a sink that takes none: show it tensors");
  const int64_t requests = arguments.context_length.view().count();
  const int64_t tokens = arguments.size(), logit_rows = arguments.logit_rows.view().count();
  const int64_t positions =
      arguments.page_table.view().count() * (caches.empty() ? 0 : caches[0].k.shape[1]);
  int64_t digests = 0, hashes = 0;
  for (const Place& place : places_of(model.graph())) {
    const Point& p = *place.point;
    if (!wants(p, place.layer) || (is_of_logits(p) && logit_rows == 0)) continue;
    const bool cache = is_cache(p);
    layout_->taps.push_back({.point = &p,
                             .layer = place.layer,
                             .digest = digests,
                             .hashes = cache ? layout_->caches++ : hashes,
                             .keeps = ring->keeps(p, place.layer)});
    digests += cache ? requests : 1;
    if (!cache) hashes += kHash * (is_of_logits(p) ? logit_rows : tokens);
  }
  const int64_t head = digests * static_cast<int64_t>(sizeof(Digest));
  for (DigestLayout::Tap& tap : layout_->taps)
    if (!is_cache(*tap.point)) tap.hashes += head;
  layout_->cache_hashes = head + hashes;
  digests_ =
      std::make_shared<Tensor>(Shape{layout_->cache_hashes + layout_->caches * positions * kHash},
                               DType::u8, model.device());
}

DigestLayout::Tap& DeviceDigests::tap_of(const Record& record) {
  const auto found = std::ranges::find_if(layout_->taps, [&](const DigestLayout::Tap& tap) {
    return tap.layer == record.layer && *tap.point == *record.point;
  });
  check(found != layout_->taps.end(), "point {} is none of this model's", record.point->name);
  return *found;
}

DigestJob DeviceDigests::job_of(const DigestLayout::Tap& tap) const {
  const TensorView& tensor = tap.tensor;
  DigestJob job{.dtype = tensor.dtype,
                .data = tensor.data,
                .out = digests_->as<Digest>() + tap.digest,
                .row_hashes = reinterpret_cast<uint64_t*>(digests_->as<char>() + tap.hashes)};
  if (!is_cache(*tap.point)) {
    job.row_bytes = tensor.row_size() * size_of(tensor.dtype);
    job.rows = arguments_.counts.as<int32_t>() + (is_of_logits(*tap.point) ? 1 : 0);
    job.most_rows = tensor.rows();
    return job;
  }
  const Shape& pool = tensor.shape;
  job.values = caches_[static_cast<size_t>(tap.layer)].v.data;
  job.row_bytes = pool[2] * pool[3] * size_of(tensor.dtype);
  job.rows = arguments_.context_length.as<int32_t>();
  job.requests = arguments_.context_length.view().count();
  job.table = arguments_.page_table.as<int32_t>();
  job.width = arguments_.page_table.view().shape[1];
  job.page_size = pool[1];
  job.pages = pool[0];
  job.most_rows = job.width * job.page_size;
  job.row_hashes = reinterpret_cast<uint64_t*>(digests_->as<char>() + layout_->cache_hashes);
  job.order = tap.hashes;
  return job;
}

void DeviceDigests::record(const Record& record) {
  DigestLayout::Tap& tap = tap_of(record);
  const bool cache = is_cache(*tap.point);
  tap.tensor = cache ? caches_[static_cast<size_t>(tap.layer)].k : record.tensor;
  std::vector<DigestJob>& jobs = cache ? cache_jobs_ : jobs_;
  jobs.push_back(job_of(tap));
  if (lifetime_ == Lifetime::layer) {
    flush(jobs, stream_of(model_.device()));
    if (!tap.keeps) return;
    copies_.push_back(std::make_shared<Tensor>(copy_on(model_.device(), tap.tensor)));
    tap.tensor = copies_.back()->view();
    return;
  }
  // The hash of a long cache is a long chain: some side by side, and the last ones at once.
  if (cache && (jobs.size() == kCachesTogether || tap.hashes == layout_->caches - 1))
    flush(jobs, digest_maker().long_aside);
  if (!cache && jobs.size() == kTogether) flush(jobs, digest_maker().aside);
}

void DeviceDigests::flush(std::vector<DigestJob>& jobs, CUstream_st* stream) {
  const DigestMaker& maker = digest_maker();
  CUstream_st* const ops = stream_of(model_.device());
  if (stream != ops && !jobs.empty()) {
    maker.order(stream, ops);
    used_.insert(stream);
  }
  for (std::span<const DigestJob> left = jobs; !left.empty();) {
    const auto some = left.first(std::min(left.size(), size_t{DigestMaker::kMostJobs}));
    scratch_.emplace_back(Shape{maker.scratch_bytes(some)}, DType::u8, model_.device());
    maker.digest(some, scratch_.back().view().data, stream);
    left = left.subspan(some.size());
  }
  jobs.clear();
  // On the stream of the ops the next one may work there.
  if (stream == ops) scratch_.clear();
}

void DeviceDigests::end() {
  if (lifetime_ == Lifetime::layer) return;
  const DigestMaker& maker = digest_maker();
  flush(cache_jobs_, maker.long_aside);
  flush(jobs_, maker.aside);
  // A graph can only wait for streams that are part of it.
  for (CUstream_st* stream : used_) maker.order(stream_of(model_.device()), stream);
}

Forward forward_digested(Model& model, const Batch& arguments, const std::vector<KvCache>& caches,
                         Probe& probe, Activations* buffers, DigestedPass& digested) {
  DeviceDigests digests(
      model, arguments, caches, probe,
      buffers == nullptr ? Activations::Lifetime::layer : Activations::Lifetime::pass);
  Probe digesting(&digests);
  const Forward forward = buffers == nullptr
                              ? model.forward(arguments, caches, digesting)
                              : model.forward(arguments, caches, digesting, *buffers);
  check(digesting.failure().empty(), "{}", digesting.failure());
  digested = digests.result();
  return forward;
}

}  // namespace lockstep
