// A journal is read as a stranger's: a record is taken when all of it is there and its checksum is
// right, and of what it says each number is checked before it is used. It may end anywhere (that is
// what it is for): all passes before the damage are kept, and one that lacks tensors is left out.
#include "traces/journal_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

constexpr size_t kPiece = size_t{1} << 20;  // bytes that are read at once, and more for a record

// Takes values off the front of a record. Throws Error for what is not there.
class Cursor {
 public:
  explicit Cursor(std::string_view rest) : rest_(rest) {}

  std::string_view take_bytes(size_t bytes) {
    check(bytes <= rest_.size(), "a record has fewer bytes than it says");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> take_all(size_t count) {
    check(count <= rest_.size() / sizeof(T), "a record has fewer bytes than it says");
    std::vector<T> values(count);
    const std::string_view bytes = take_bytes(count * sizeof(T));
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::pair<int32_t, std::vector<int32_t>> take_list() {
    const auto owner = take<int32_t>();
    const auto count = take<uint32_t>();
    return {owner, take_all<int32_t>(count)};
  }
  void expect_end() const { check(rest_.empty(), "a record has more bytes than it says"); }

 private:
  std::string_view rest_;
};

void check_run(const RowRun& run) {
  check(run.is_sound(), "{} rows from position {} on are none, wanted positions of 0 to {}",
        run.count, run.first, kMostPositions - 1);
}

PassInfo info_from(const PassHead& head, Cursor& record) {
  PassInfo info{.pass = head.pass};
  for (const PackedRow& row : record.take_all<PackedRow>(head.rows)) {
    check_run({row.request, row.position, 1});
    check(row.phase == 0 || row.phase == 1, "the phase of a row is 0 or 1, found {}", row.phase);
    info.rows.push_back({{row.request, row.position},
                         row.token,
                         row.slot,
                         row.phase == 0 ? Phase::prefill : Phase::decode});
  }
  info.logit_rows = record.take_all<int32_t>(head.logit_rows);
  for (const int32_t row : info.logit_rows)
    check(row >= 0 && row < std::ssize(info.rows),
          "the logit_rows of pass {} are to be among its {} rows, found {}", info.pass,
          info.rows.size(), row);
  for (uint32_t i = 0; i < head.tables; ++i) {
    auto [request, pages] = record.take_list();
    info.pages.push_back({request, std::move(pages)});
  }
  info.inherited_known = (head.flags & kInheritsKnown) != 0;
  for (uint32_t i = 0; i < head.inherited; ++i) {
    auto [request, tokens] = record.take_list();
    info.inherited.push_back({request, std::move(tokens)});
  }
  return info;
}

TopLogits logits_from(uint32_t best, Cursor& record) {
  TopLogits top;
  top.row.request = record.take<int32_t>();
  top.row.position = record.take<int32_t>();
  top.chosen = record.take<int32_t>();
  top.ids = record.take_all<int32_t>(best);
  top.values = record.take_all<double>(best);
  return top;
}

// A digest as put_tensor has it; `elements` of the shape.
Digest digest_from(const TensorHead& head, int64_t elements, Cursor& record) {
  Digest d = digest_of_rows({}, elements);
  d.hash = head.xxh3;
  if (head.flags & kHasNumbers) {
    const auto numbers = record.take<PackedNumbers>();
    std::tie(d.min, d.max, d.absmax, d.mean) =
        std::tie(numbers.min, numbers.max, numbers.absmax, numbers.mean);
    std::tie(d.m2, d.sum_abs, d.sum_squares, d.absmax_index) =
        std::tie(numbers.m2, numbers.sum_abs, numbers.sum_squares, numbers.absmax_at);
    const auto counts = head.flags & kHasCounts ? record.take<PackedCounts>() : PackedCounts{};
    std::tie(d.nan, d.pos_inf, d.neg_inf, d.zeros, d.subnormals) =
        std::tie(counts.nan, counts.pos_inf, counts.neg_inf, counts.zeros, counts.subnormals);
  }
  const size_t width = head.exponent_bytes;
  check(width == 1 || width == 2 || width == 4, "counts of elements take 1, 2 or 4 bytes, found {}",
        width);
  for (const uint8_t bin : record.take_all<uint8_t>(head.exponents))
    d.exponents[bin] = 1;  // in the order of the bins, each once
  for (uint32_t& count : d.exponents)
    if (count != 0) std::memcpy(&(count = 0), record.take_bytes(width).data(), width);
  return d;
}

std::vector<Row> rows_from(const TensorHead& head, const Pass& pass, RowBudget& budget,
                           Cursor& record) {
  std::vector<Row> rows;
  for (const RowRun& run : record.take_all<RowRun>(head.runs)) {
    check_run(run);
    check(budget.take(run.count), "its tensors {}", kTooManyRows);
    run.append_to(rows);
  }
  if (head.rows_are == RowsAre::runs) return rows;
  const bool of_logits = head.rows_are == RowsAre::of_its_logits;
  check(of_logits || head.rows_are == RowsAre::of_the_pass, "a tensor's rows are of no kind");
  check(rows.empty(), "a tensor has names of rows and those of its pass");
  const size_t named = of_logits ? pass.info.logit_rows.size() : pass.info.rows.size();
  check(budget.take(named), "its tensors {}", kTooManyRows);
  if (of_logits)
    for (const int32_t at : pass.info.logit_rows) rows.push_back(pass.info.rows[at].row);
  else
    for (const PassRow& row : pass.info.rows) rows.push_back(row.row);
  return rows;
}

// The row hashes of a tensor that has all but these.
std::vector<uint64_t> hashes_from(const TensorHead& head, const RecordedTensor& tensor,
                                  CacheHashes& caches, Cursor& record) {
  std::vector<uint64_t> fresh = record.take_all<uint64_t>(head.hashes);
  const size_t all = size_t{head.same} + head.hashes;
  check(all == 0 || all == tensor.rows.size(), "the tensor {} has {} rows and hashes of {}",
        tensor.point->name, tensor.rows.size(), all);
  if (!tensor.point->is_cache() || all == 0) {
    check(head.same == 0, "the tensor {} has hashes of a pass before", tensor.point->name);
    return fresh;
  }
  CacheHashes::Cache& cache = caches.of(*tensor.point, tensor.layer, tensor.rows[0].request);
  check(head.same <= cache.hashes.size() && (head.same == 0 || !cache.in_pass),
        "the tensor {} has {} hashes of a pass before, which has {}", tensor.point->name, head.same,
        cache.hashes.size());
  cache.in_pass = true;
  cache.hashes.resize(head.same);
  cache.hashes.insert(cache.hashes.end(), fresh.begin(), fresh.end());
  return cache.hashes;
}

RecordedTensor tensor_from(Cursor record, const Pass& pass, CacheHashes& caches,
                           RowBudget& budget) {
  const auto head = record.take<TensorHead>();
  const std::string_view name = record.take_bytes(head.point_bytes);
  const std::string_view dtype = record.take_bytes(head.dtype_bytes);
  const Point* const point = find_point(name);
  check(point != nullptr, "the point '{}' is not known here: it was renamed", shown(name));
  check(point->per_layer ? head.layer >= 0 && head.layer < kMostLayers : head.layer == -1,
        "the tensor {} is of layer {}", name, head.layer);
  check(head.axes >= 1 && head.axes <= 5, "the tensor {} has {} axes, wanted 1 to 5", name,
        head.axes);
  const std::vector<int64_t> shape = record.take_all<int64_t>(head.axes);
  check(is_shape(shape), "the shape of {} is none that a tensor can have", name);
  RecordedTensor tensor{.point = point,
                        .layer = head.layer,
                        .rows = rows_from(head, pass, budget, record),
                        .dtype = dtype_from(std::string(dtype)),
                        .shape = Shape(shape)};
  check(std::ssize(tensor.rows) == shape[0], "the tensor {} has {} rows and names of {}", name,
        shape[0], tensor.rows.size());
  tensor.digest = digest_from(head, tensor.shape.count(), record);
  tensor.row_hashes = hashes_from(head, tensor, caches, record);
  record.expect_end();
  const std::string_view other =
      contradiction(tensor.digest, tensor.shape.count(), tensor.digest.rms(), tensor.row_hashes);
  check(other.empty(), "the digest of {} contradicts itself in its {}", name, other);
  return tensor;
}

}  // namespace

std::string file_part(const InputFile& file, const std::string& path, size_t begin, size_t size) {
  std::string bytes(size, '\0');
  size_t have = 0;
  while (have < size) {
    const ssize_t got = ::pread(file.descriptor(), bytes.data() + have, size - have, begin + have);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, "{}: cannot be read ({})", path, std::strerror(errno));
    if (got == 0) break;
    have += got;
  }
  bytes.resize(have);
  return bytes;
}

// Walks over the records of a journal.
class JournalReader::Scan {
 public:
  explicit Scan(JournalReader& journal) : journal_(journal), size_(journal.file_.size()) {}

  void run() {
    take_beginning();
    try {
      while (at_ < size_ && !journal_.saved_.ended()) take_record();
      check(missing_ == 0, "{} tensors of the last pass are missing", missing_);
      if (at_ < size_) take_result();
    } catch (const Error& error) {
      journal_.problem_ =
          fmt::format("{}: it was cut or damaged at record {} ({}): what follows is lost",
                      journal_.path_, number_, error.what());
    }
    if (missing_ > 0) journal_.passes_.pop_back();
  }

 private:
  struct Taken {
    JournalKind kind{};
    std::string_view body;
  };

  void take_beginning() {
    const std::string& path = journal_.path_;
    check(size_ > 0, "{}: a journal was wanted, the file is empty", path);
    const std::string bytes = file_part(journal_.file_, path, 0, sizeof(JournalHead));
    check(bytes.starts_with(kJournalMagic), "{}: a journal was wanted, it does not begin as one",
          path);
    check(bytes.size() == sizeof(JournalHead), "{}: it was cut within its beginning", path);
    JournalHead head;
    std::memcpy(&head, bytes.data(), sizeof head);
    check(head.version == kJournalVersion,
          "{}: a journal of version {} was wanted, found {}: read it with the version that wrote "
          "it, or write it anew",
          path, kJournalVersion, head.version);
    at_ = sizeof head;
    std::optional<Taken> first;
    try {
      first = next();
    } catch (const Error& error) {
      fail("{}: it was cut or damaged in its manifest ({})", path, error.what());
    }
    check(first->kind == JournalKind::manifest, "{}: it does not begin with a manifest", path);
    journal_.saved_ = manifest_from(first->body, path);
    close();
  }

  // The number of tensors that a pass promises says whether the next record may be of another kind.
  void take_record() {
    ++number_;
    const Taken record = next();
    check(record.kind >= JournalKind::manifest && record.kind <= JournalKind::tensor &&
              (record.kind == JournalKind::tensor) == (missing_ > 0),
          "a record of kind {} is out of place", static_cast<uint32_t>(record.kind));
    if (record.kind == JournalKind::tensor) {
      --missing_;
    } else if (record.kind == JournalKind::pass) {
      take_pass(record.body);
    } else {
      SavedManifest saved = manifest_from(record.body, journal_.path_);
      check(saved.ended(), "a manifest that is not of the end is out of place");
      journal_.saved_ = std::move(saved);
    }
    close();
    if (record.kind != JournalKind::manifest) journal_.passes_.back().end = at_;
  }

  void take_pass(std::string_view body) {
    const auto head = Cursor(body).take<PassHead>();
    const bool anew = (head.flags & kBeginsAnew) != 0;
    const size_t i = journal_.passes_.size();
    check(anew || (i > 0 && i - journal_.passes_.back().block < kPassesOfBlock),
          "pass {} goes on with hashes of more than {} passes before", head.pass, kPassesOfBlock);
    missing_ = head.tensors;
    journal_.passes_.push_back({.number = head.pass,
                                .kept = (head.flags & kTensorsKept) != 0,
                                .block = anew ? i : journal_.passes_.back().block,
                                .begin = at_});
  }

  // A part of a result, or one that was damaged, is none, and the trace before it is whole.
  void take_result() {
    ++number_;
    journal_.result_is_damaged_ = true;
    if (size_ - at_ < sizeof(RecordHead)) return;
    const RecordHead head = head_here();
    check(head.kind == JournalKind::result, "nothing but a result may follow the end");
    if (head.bytes > size_ - at_ - sizeof head) return;
    check(head.bytes == size_ - at_ - sizeof head, "something follows the result");
    const char* const record = bytes_here(sizeof head + head.bytes);
    const std::string body(record + sizeof head, head.bytes);
    const std::string whole = journal_record(JournalKind::result, body, journal_.checksum_);
    if (std::memcmp(whole.data(), &head.checksum, sizeof head.checksum) != 0) return;
    journal_.result_ = body;
    journal_.result_is_damaged_ = false;
  }

  // The record at at_, once its checksum is known to be right.
  Taken next() {
    check(size_ - at_ >= sizeof(RecordHead), "it has no end");
    head_ = head_here();
    check(head_.bytes <= kMostRecord && head_.bytes <= size_ - at_ - sizeof head_, "it has no end");
    char* const record = bytes_here(sizeof head_ + head_.bytes);
    checksum_ = journal_checksum(record, sizeof head_ + head_.bytes, journal_.checksum_);
    check(checksum_ == head_.checksum, "its checksum is another");
    return {head_.kind, std::string_view(record + sizeof head_, head_.bytes)};
  }
  size_t next_at() const { return at_ + sizeof head_ + head_.bytes; }
  void close() {
    at_ = journal_.end_ = next_at();
    journal_.checksum_ = checksum_;
  }

  RecordHead head_here() {
    RecordHead head;
    std::memcpy(&head, bytes_here(sizeof head), sizeof head);
    return head;
  }
  // Bytes at at_, in memory until the next call.
  char* bytes_here(size_t size) {
    if (at_ < piece_at_ || at_ + size > piece_at_ + piece_.size()) {
      piece_ = file_part(journal_.file_, journal_.path_, at_,
                         std::min(std::max(size, kPiece), size_ - at_));
      piece_at_ = at_;
      check(size <= piece_.size(), "it has no end");
    }
    return piece_.data() + (at_ - piece_at_);
  }

  JournalReader& journal_;
  size_t size_, at_ = 0, piece_at_ = 0;
  std::string piece_;
  RecordHead head_;
  uint64_t checksum_ = 0;
  uint32_t missing_ = 0;  // tensors that the last pass still lacks
  int64_t number_ = 1;
};

JournalReader::JournalReader(const std::string& path) : path_(path), file_(path) {
  Scan(*this).run();
}

Pass JournalReader::read(size_t i) {
  const PassAt& wanted = passes_.at(i);
  try {
    if (next_ > i || next_ <= wanted.block) next_ = wanted.block;
    while (next_ < i) next_pass();
    return next_pass();
  } catch (const Error& error) {
    next_ = passes_.size();  // what of the caches was read is not whole
    fail("{}: pass {} makes no sense ({}): the file is damaged, write the trace anew", path_,
         wanted.number, error.what());
  }
}

Pass JournalReader::next_pass() {
  const PassAt& at = passes_.at(next_);
  if (at.block == next_) budget_ = RowBudget(0);
  budget_.add(at.end - at.begin);
  const std::string bytes = file_part(file_, path_, at.begin, at.end - at.begin);
  Cursor rest(bytes);
  const auto next_record = [&rest] {
    const auto head = rest.take<RecordHead>();
    return Cursor(rest.take_bytes(head.bytes));
  };
  Cursor record = next_record();
  const auto head = record.take<PassHead>();
  Pass pass{.info = info_from(head, record)};
  for (uint32_t i = 0; i < head.logits; ++i) pass.logits.push_back(logits_from(head.best, record));
  record.expect_end();
  caches_.begin_pass(at.block == next_);
  for (uint32_t i = 0; i < head.tensors; ++i)
    pass.tensors.push_back(tensor_from(next_record(), pass, caches_, budget_));
  ++next_;
  return pass;
}

}  // namespace lockstep
