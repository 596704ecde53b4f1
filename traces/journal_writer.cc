// A pass becomes a record of its own and one of each of its tensors, in one piece of memory that is
// used again. What of a pass is the same for most of its tensors (whose rows they have) is a word
// in each; what grows with the context (row hashes of the caches) is stored as far as it is new.
#include "traces/journal_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "traces/columns.h"

namespace lockstep {
namespace {

constexpr size_t kManyRows = size_t{1} << 16;  // of all tensors of a pass
constexpr int kMostThreads = 8;
constexpr size_t kMostOfBody = 256;  // bytes of a tensor of few runs and bins, but for its hashes

template <typename T>
void put(const T& value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
void put_all(std::span<const T> values, std::string& out) {
  out.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

uint32_t how_many(const auto& list) { return static_cast<uint32_t>(list.size()); }

// A request, how many numbers, and they.
void put_list(int32_t request, std::span<const int32_t> numbers, std::string& out) {
  put(request, out);
  put(how_many(numbers), out);
  put_all(numbers, out);
}

// The occupied bins, and how many bytes a count of theirs takes.
struct Bins {
  std::vector<uint8_t> bins;
  uint32_t most = 0;
  uint8_t width() const { return most < 1u << 8 ? 1 : most < 1u << 16 ? 2 : 4; }
};

Bins bins_of(const Digest& digest) {
  Bins found;
  for (size_t bin = 0; bin < digest.exponents.size(); ++bin) {
    if (digest.exponents[bin] == 0) continue;
    found.bins.push_back(static_cast<uint8_t>(bin));
    found.most = std::max(found.most, digest.exponents[bin]);
  }
  return found;
}

// The leading hashes that both have.
size_t same_hashes(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  const size_t both = std::min(a.size(), b.size());
  // Where there are no hashes there may be no address, and memcmp must not be given a null one.
  if (both == 0 || std::memcmp(a.data(), b.data(), both * sizeof(uint64_t)) == 0) return both;
  return std::ranges::mismatch(a.first(both), b.first(both)).in1 - a.begin();
}

// Appends a record and returns its checksum.
uint64_t append_record(JournalKind kind, std::string_view body, uint64_t before, std::string& out) {
  check(body.size() <= kMostRecord, "a record of a journal takes {} bytes, found {}", kMostRecord,
        body.size());
  const size_t begin = out.size();
  put(RecordHead{0, static_cast<uint32_t>(body.size()), kind}, out);
  out += body;
  const uint64_t checksum = journal_checksum(&out[begin], out.size() - begin, before);
  std::memcpy(&out[begin], &checksum, sizeof checksum);
  return checksum;
}

PackedNumbers numbers_of(const Digest& d) {
  return {d.min, d.max, d.absmax, d.mean, d.m2, d.sum_abs, d.sum_squares, d.absmax_index};
}

}  // namespace

bool keeps_tensors(const Pass& pass) {
  return std::ranges::any_of(
      pass.tensors, [](const RecordedTensor& tensor) { return !tensor.data.view().empty(); });
}

uint64_t journal_checksum(char* record, size_t bytes, uint64_t before) {
  std::memcpy(record, &before, sizeof before);
  return hash_of(record, bytes);
}

std::string journal_record(JournalKind kind, std::string_view body, uint64_t before) {
  std::string record;
  append_record(kind, body, before, record);
  return record;
}

void CacheHashes::begin_pass(bool anew) {
  if (anew) caches_.clear();
  for (auto& [key, cache] : caches_) cache.in_pass = false;
}

void JournalEncoder::put_record(JournalKind kind, std::string_view body) {
  checksum_ = append_record(kind, body, checksum_, out_);
}

std::string_view JournalEncoder::begin(const SavedManifest& saved) {
  out_.clear();
  JournalHead head;
  std::ranges::copy(kJournalMagic, head.magic);
  put(head, out_);
  put_manifest(saved);
  return out_;
}

std::string_view JournalEncoder::end(const SavedManifest& saved) {
  out_.clear();
  put_manifest(saved);
  return out_;
}

void JournalEncoder::put_manifest(const SavedManifest& saved) {
  put_record(JournalKind::manifest, json_of(saved, Layout::one_line));
}

std::string_view JournalEncoder::pass(const Pass& pass) {
  check_has_digests(pass);
  out_.clear();
  const bool anew = in_block_ == 0 || in_block_ == kPassesOfBlock;
  if (anew) in_block_ = 0;
  caches_.begin_pass(anew);
  ++in_block_;
  rows_.clear();
  logit_rows_.clear();
  for (const PassRow& row : pass.info.rows) rows_.push_back(row.row);
  for (const int32_t at : pass.info.logit_rows) logit_rows_.push_back(rows_.at(at));
  put_pass(pass);
  put_tensors(pass);
  return out_;
}

void JournalEncoder::put_pass(const Pass& pass) {
  const PassInfo& info = pass.info;
  const uint32_t best = pass.logits.empty() ? 0 : how_many(pass.logits[0].ids);
  std::string body;
  put(PassHead{.pass = info.pass,
               .flags = (in_block_ == 1 ? kBeginsAnew : 0) |
                        (info.inherited_known ? kInheritsKnown : 0) |
                        (keeps_tensors(pass) ? kTensorsKept : 0),
               .tensors = how_many(pass.tensors),
               .rows = how_many(info.rows),
               .logit_rows = how_many(info.logit_rows),
               .tables = how_many(info.pages),
               .inherited = how_many(info.inherited),
               .logits = how_many(pass.logits),
               .best = best},
      body);
  for (const PassRow& row : info.rows)
    put(PackedRow{row.row.request, row.row.position, row.token, static_cast<int32_t>(row.phase),
                  row.slot},
        body);
  put_all(std::span<const int32_t>(info.logit_rows), body);
  for (const RequestPages& table : info.pages) put_list(table.request, table.pages, body);
  for (const Inherited& one : info.inherited) put_list(one.request, one.tokens, body);
  for (const TopLogits& top : pass.logits) {
    check(top.ids.size() == best && top.values.size() == best,
          "the rows of logits of pass {} have {} of the best, and one has {}", info.pass, best,
          top.ids.size());
    put(top.row.request, body);
    put(top.row.position, body);
    put(top.chosen, body);
    put_all(std::span<const int32_t>(top.ids), body);
    put_all(std::span<const double>(top.values), body);
  }
  put_record(JournalKind::pass, body);
}

// The bodies are made by all threads, the records one after the other.
void JournalEncoder::put_tensors(const Pass& pass) {
  size_t rows = 0;
  bool twice = false;  // whether a cache is there again
  std::vector<CacheHashes::Cache*> caches;
  std::vector<bool> again;
  for (const RecordedTensor& tensor : pass.tensors) {
    rows += tensor.rows.size();
    CacheHashes::Cache* cache = nullptr;
    if (tensor.point->is_cache() && !tensor.row_hashes.empty())
      cache = &caches_.of(*tensor.point, tensor.layer, tensor.rows.at(0).request);
    again.push_back(cache != nullptr && std::exchange(cache->in_pass, true));
    twice = twice || again.back();
    caches.push_back(cache);
  }
  if (rows > kManyRows && pool_ == nullptr)
    pool_ = std::make_unique<ThreadPool>(std::clamp(machine_threads() / 2, 1, kMostThreads));
  std::vector<std::string> bodies(pass.tensors.size());
  parallel_for(rows > kManyRows && !twice ? pool_.get() : nullptr, std::ssize(bodies), 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   // The hashes of this pass itself are of no earlier one.
                   if (again[i]) caches[i]->hashes.clear();
                   bodies[i] = body_of(pass.tensors[i], caches[i]);
                 }
               });
  for (const std::string& body : bodies) put_record(JournalKind::tensor, body);
}

std::string JournalEncoder::body_of(const RecordedTensor& tensor, CacheHashes::Cache* cache) const {
  const Digest& d = tensor.digest;
  const std::string_view point = tensor.point->name, dtype = name_of(tensor.dtype);
  const PackedCounts counts{d.nan, d.pos_inf, d.neg_inf, d.zeros, d.subnormals};
  const Bins bins = bins_of(d);
  TensorHead head{.xxh3 = d.hash,
                  .layer = tensor.layer,
                  .point_bytes = static_cast<uint8_t>(point.size()),
                  .dtype_bytes = static_cast<uint8_t>(dtype.size()),
                  .axes = static_cast<uint8_t>(tensor.shape.rank()),
                  .exponent_bytes = bins.width(),
                  .exponents = static_cast<uint16_t>(bins.bins.size())};
  if (d.has_numbers()) head.flags |= kHasNumbers;
  if (d.has_numbers() && counts != PackedCounts{}) head.flags |= kHasCounts;
  std::vector<RowRun> runs;
  if (tensor.rows == rows_)
    head.rows_are = RowsAre::of_the_pass;
  else if (tensor.rows == logit_rows_)
    head.rows_are = RowsAre::of_its_logits;
  else
    runs = runs_of(tensor.rows);
  head.runs = how_many(runs);
  std::span<const uint64_t> fresh = tensor.row_hashes;
  if (cache != nullptr) {
    head.same = static_cast<uint32_t>(same_hashes(cache->hashes, fresh));
    fresh = fresh.subspan(head.same);
    cache->hashes.resize(head.same);
    cache->hashes.insert(cache->hashes.end(), fresh.begin(), fresh.end());
  }
  head.hashes = how_many(fresh);
  std::string body;
  body.reserve(sizeof head + fresh.size_bytes() + kMostOfBody);
  put(head, body);
  body += point;
  body += dtype;
  put_all(tensor.shape.extents(), body);
  put_all(std::span<const RowRun>(runs), body);
  if (head.flags & kHasNumbers) put(numbers_of(d), body);
  if (head.flags & kHasCounts) put(counts, body);
  put_all(std::span<const uint8_t>(bins.bins), body);
  for (const uint8_t bin : bins.bins)
    body.append(reinterpret_cast<const char*>(&d.exponents[bin]), bins.width());
  put_all(fresh, body);
  return body;
}

}  // namespace lockstep
