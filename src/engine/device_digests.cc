// The layout of all digests of a pass is fixed before its first op: heads of digests, then row
// hashes, then the hashes of caches, in one block of device memory, so that a graph can write them
// anew on every replay and the host can copy them at once.
#include "src/engine/device_digests.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kHash = sizeof(uint64_t), kCount = sizeof(int64_t);
// Tensors of a launch, and caches of a launch of their own: those of a few layers, so that digests
// are made while the ops go on. Whoever computes a whole pass in one launch shows them all at once:
// what counts then is that there are few launches after it.
struct Together {
  size_t tensors = 64, caches = 8;
  explicit Together(const Model& model) {
    if (model.placement().make_executor) tensors = caches = DigestMaker::kMostJobs;
  }
};

bool is_cache(const Point& p) { return p.is_cache(); }

}  // namespace

DeviceDigests::DeviceDigests(const Model& model, const Batch& arguments,
                             const std::vector<KvCache>& caches, Probe& seen, Lifetime lifetime)
    : model_(model),
      arguments_(arguments),
      caches_(caches),
      seen_(seen),
      lifetime_(lifetime),
      ops_stream_(stream_of(model.device())),
      maker_(runtime_of(model.device()).digests) {
  ring_ = seen.digests();
  check(ring_ != nullptr, "a sink without a ring takes no digests: show it tensors");
  const int64_t requests = arguments.context_length.view().count();
  const int64_t tokens = arguments.size(), logit_rows = arguments.logit_rows.view().count();
  // Caches have room for all pages of all tables, as a graph serves requests of any length that
  // fit.
  const int64_t positions =
      arguments.page_table.view().count() * (caches.empty() ? 0 : caches[0].k.shape[1]);
  int64_t head = 0, hashes = 0;
  for (const Place& place : model.graph().places()) {
    const Point& p = *place.point;
    if (!wants(p, place.layer) || (p.is_of_logits() && logit_rows == 0)) continue;
    const bool cache = is_cache(p);
    layout_->taps.push_back({.point = &p,
                             .layer = place.layer,
                             .digest = head,
                             .hashes = cache ? layout_->caches++ : hashes,
                             .keeps = ring_->keeps(p, place.layer)});
    head += cache ? requests * kCount : sizeof(Digest);
    if (!cache) hashes += kHash * (p.is_of_logits() ? logit_rows : tokens);
  }
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

template <typename T>
T* DeviceDigests::place(int64_t bytes) const {
  return reinterpret_cast<T*>(digests_->as<char>() + bytes);
}

DigestJob DeviceDigests::job_of(const DigestLayout::Tap& tap) const {
  const TensorView& tensor = tap.tensor;
  return {.dtype = tensor.dtype,
          .data = tensor.data,
          .row_bytes = tensor.row_size() * size_of(tensor.dtype),
          // The number of rows is read on the device, so that a replay digests those of its own
          // pass.
          .rows = arguments_.counts.as<int32_t>() + (tap.point->is_of_logits() ? 1 : 0),
          .most_rows = tensor.rows(),
          .ready = ready_of_ ? ready_of_(*tap.point, tap.layer) : Ready(),
          .out = place<Digest>(tap.digest),
          .row_hashes = place<uint64_t>(tap.hashes)};
}

// A tensor's digest, and the hashes of its rows: of long rows, whose hash by one warp would end
// long after all else, as digests of their own.
std::vector<DigestJob> DeviceDigests::jobs_of(const DigestLayout::Tap& tap) {
  constexpr int64_t kLong = 32 << 10;
  std::vector<DigestJob> jobs = {job_of(tap)};
  const DigestJob whole = jobs[0];
  if (whole.most_rows == 1 || whole.row_bytes < kLong) return jobs;
  jobs[0].row_hashes = nullptr;
  scratch_.emplace_back(Shape{whole.most_rows * int64_t{sizeof(Digest)}}, DType::u8,
                        model_.device());
  for (int64_t row = 0; row < whole.most_rows; ++row) {
    DigestJob& job = jobs.emplace_back(whole);
    job.data = static_cast<const char*>(whole.data) + row * whole.row_bytes;
    job.most_rows = 1;
    job.out = scratch_.back().as<Digest>() + row;
    job.row_hashes = whole.row_hashes + row;
  }
  return jobs;
}

CacheJob DeviceDigests::cache_job_of(const DigestLayout::Tap& tap) const {
  const Shape& pool = tap.tensor.shape;
  const int64_t width = arguments_.page_table.view().shape[1];
  return {.k = tap.tensor.data,
          .v = caches_[tap.layer].v.data,
          .row_bytes = pool[2] * pool[3] * size_of(tap.tensor.dtype),
          .rows = arguments_.context_length.as<int32_t>(),
          .requests = arguments_.context_length.view().count(),
          .most_rows = width * pool[1],
          .table = arguments_.page_table.as<int32_t>(),
          .width = width,
          .page_size = pool[1],
          .pages = pool[0],
          .hashed = place<int64_t>(tap.digest),
          .row_hashes = place<uint64_t>(layout_->cache_hashes),
          .cache_index = tap.hashes,
          .ready = ready_of_ ? ready_of_(*tap.point, tap.layer) : Ready()};
}

bool DeviceDigests::waits(const ReadyOf& ready) {
  if (lifetime_ == Lifetime::layer) return false;
  ready_of_ = ready;
  return true;
}

void DeviceDigests::record(const Record& record) {
  DigestLayout::Tap& tap = tap_of(record);
  if (is_cache(*tap.point)) {
    tap.tensor = caches_[tap.layer].k;
    cache_jobs_.push_back(cache_job_of(tap));
    if (ready_of_) return;
    if (lifetime_ == Lifetime::layer)
      // The model's own buffers are written again by the next layer, so that digests must be queued
      // before it on the same stream.
      flush_caches(ops_stream_);
    else if (cache_jobs_.size() == Together(model_).caches || tap.hashes == layout_->caches - 1)
      flush_caches(maker_.cache_digest_stream);
    return;
  }
  tap.tensor = record.tensor;
  const bool of_layer = lifetime_ == Lifetime::layer;
  for (const DigestJob& job : jobs_of(tap)) {
    if (ready_of_) {
      meanwhile_.push_back(job);
      continue;
    }
    jobs_.push_back(job);
    if (jobs_.size() == Together(model_).tensors)
      flush(of_layer ? ops_stream_ : maker_.digest_stream);
  }
  if (!of_layer) return;
  flush(ops_stream_);
  scratch_.clear();  // the next launch on that stream may reuse it
  if (!tap.keeps) return;
  ring_->reserve(tap.tensor.bytes());
  copies_.push_back(std::make_shared<Tensor>(copy_on(model_.device(), tap.tensor)));
  tap.tensor = copies_.back()->view();
}

void DeviceDigests::follow_ops(CUstream_st* stream) {
  CUstream_st* const ops = ops_stream_;
  if (stream == ops) return;
  const bool first = used_.insert(stream).second;
  if (!ready_of_)
    maker_.stream_wait(stream, ops);
  else if (first)
    maker_.wait_begun(stream);
}

void DeviceDigests::flush(CUstream_st* stream) {
  if (jobs_.empty()) return;
  follow_ops(stream);
  scratch_.emplace_back(Shape{maker_.scratch_bytes(jobs_)}, DType::u8, model_.device());
  maker_.digest(jobs_, scratch_.back().view().data, stream);
  jobs_.clear();
}

void DeviceDigests::flush_caches(CUstream_st* stream) {
  if (cache_jobs_.empty()) return;
  follow_ops(stream);
  maker_.hash_caches(cache_jobs_, stream);
  cache_jobs_.clear();
}

// One launch of all, before that of the caches: its blocks want multiprocessors of their own.
void DeviceDigests::flush_meanwhile() {
  if (meanwhile_.empty()) return;
  CUstream_st* const stream = maker_.digest_stream;
  follow_ops(stream);
  const MeanwhileRoom room = maker_.meanwhile_room(meanwhile_);
  scratch_.emplace_back(Shape{room.scratch}, DType::u8, model_.device());
  list_ = std::make_shared<Tensor>(Tensor::pinned({room.list}, DType::u8, model_.device()));
  maker_.meanwhile(meanwhile_, scratch_.back().view().data, list_->view().data, stream);
  meanwhile_.clear();
}

void DeviceDigests::end() {
  maker_.mark_ops(ops_stream_);
  if (lifetime_ == Lifetime::layer) return;
  flush_meanwhile();
  flush_caches(maker_.cache_digest_stream);
  flush(maker_.digest_stream);
  // A graph can only wait for streams that are part of it.
  for (CUstream_st* stream : used_) maker_.stream_wait(ops_stream_, stream);
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
