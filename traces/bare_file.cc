// A trace of another program has tensors, tokens and rows, and nothing else that ours have. The
// missing parts are made when it is read: digests from the tensors, the graph from the points that
// are there, the manifest from the attributes. The first reading of a pass reads its tensors; what
// was made of it is kept without them.
#include "traces/bare_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/base/printable.h"
#include "probes/qwen_graph.h"
#include "probes/recorder.h"
#include "traces/bare_rows.h"
#include "traces/bare_tensor.h"
#include "traces/hdf5_file.h"
#include "traces/manifest.h"
#include "traces/place_reader.h"

namespace lockstep {
namespace {

// The rows of a tensor by their number: of all tokens of the pass, or of the last of each request.
// Throws Error, naming `where`, when it is of neither.
std::vector<Row> rows_of_tensor(int64_t count, const Point& point, const PassInfo& info,
                                const std::string& where) {
  const auto of =
      point.rows == RowDomain::logit ? std::optional(info.logit_rows) : rows_by_count(count, info);
  check(of && count == std::ssize(*of),
        "{} has {} rows, and pass {} has {} in /passes: write a row for each token, or for the "
        "last of each request",
        where, count, info.pass, info.rows.size());
  std::vector<Row> rows;
  for (const int32_t i : *of) rows.push_back(info.rows[i].row);
  return rows;
}

// The rows of a request's attn.kv: positions from 0 on.
std::vector<Row> rows_of_cache(int64_t count, int32_t request, const std::string& where) {
  check(count <= kMostPositions, "{} has {} positions, wanted at most {}", where, count,
        kMostPositions);
  std::vector<Row> rows;
  for (int32_t i = 0; i < count; ++i) rows.push_back({request, i});
  return rows;
}

// One tensor of the file.
struct Stored {
  std::string path;
  Place place;
  int32_t request = -1;  // of attn.kv
};

// The number that follows `word` to the end of a name; nothing where it is another name.
std::optional<int32_t> number_after(std::string_view name, std::string_view word) {
  if (!name.starts_with(word)) return {};
  name.remove_prefix(word.size());
  int32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool all = error == std::errc() && end == name.data() + name.size() && number >= 0;
  return all ? std::optional(number) : std::nullopt;
}

// The point of a tensor's name, and of attn.kv the request.
std::pair<const Point*, int32_t> point_of(const std::string& name) {
  const Point& cache = point("attn.kv");
  if (name.starts_with("attn.kv.")) {
    const auto request = number_after(name, "attn.kv.request");
    return {request ? &cache : nullptr, request.value_or(-1)};
  }
  return {find_point(name), name == cache.name ? 0 : -1};
}

// Tensors by how well they tell a run's dtype, the best first: numbers that were computed of
// weights in it. Logits, of experts too, and the stream may be kept wider, and those that are read
// from a weight are in the weight's dtype whatever the run's is.
int rank_to_tell(const Stored& tensor) {
  const Point& p = *tensor.place.point;
  if (p.op == OpKind::gather) return 4;
  if (p.op == OpKind::add || p.op == OpKind::softmax) return 3;
  if (p.is_of_logits() || p == point("mlp.router")) return 2;
  return row_of(p.op).has_matrix ? 0 : 1;
}

// Bits that only a dtype makes numbers of.
bool is_untold(const Hdf5File& file, const std::string& path) {
  return !file.has(path, "dtype") && file.numbers(path, /*whole=*/false).only_bits;
}

// The dtype of a run of which nothing says it. Programs that have no other floats than fp32 store
// one of 16 bits in it. The best that tell in a layer of a pass are asked, and most of them have
// it: one may be a sum that was kept wider, or be rounded by a bug. `said`: what was taken for
// what.
DType dtype_found(const Hdf5File& file, const std::map<int32_t, std::vector<Stored>>& stored,
                  std::vector<std::string>& said) {
  std::vector<const Stored*> telling;
  for (const auto& [pass, tensors] : stored)
    for (const Stored& tensor : tensors)
      if (tensor.place.point->dtype == PointDType::of_the_run) telling.push_back(&tensor);
  check(!telling.empty(),
        "{}: has no tensor of a model's numbers: a trace shows some (traces/README.md, The least "
        "trace)",
        file.path());
  std::ranges::stable_sort(telling, {}, [](const Stored* tensor) { return rank_to_tell(*tensor); });
  struct Votes {
    int count = 0;
    std::string wider;  // the first tensor that is stored in another dtype; empty: none
  };
  std::map<DType, Votes> votes;
  std::set<const Point*> asked;
  std::optional<int> rank, layer;
  for (const Stored* tensor : telling) {
    const Point* const p = tensor->place.point;
    const bool is_other = rank && (rank_to_tell(*tensor) != *rank ||
                                   tensor->place.layer != *layer || asked.contains(p));
    if (is_other) break;
    if (is_untold(file, tensor->path)) continue;
    const Tensor data = bare_tensor(file, tensor->path, *p, {});
    const std::optional<DType> found = dtype_of_numbers(data);
    if (!found) continue;
    rank = rank_to_tell(*tensor), layer = tensor->place.layer;
    asked.insert(p);
    Votes& of_dtype = votes[*found];
    ++of_dtype.count;
    if (of_dtype.wider.empty() && data.view().dtype != *found) of_dtype.wider = tensor->path;
  }
  DType most = DType::f32;  // of as many, the narrower: fp32 numbers are none of 16 bits by chance
  for (const DType dtype : {DType::f16, DType::bf16})
    if (votes[dtype].count > 0 && votes[dtype].count >= votes[most].count) most = dtype;
  if (const std::string& wider = votes[most].wider; !wider.empty())
    said.push_back(
        fmt::format("nothing says the dtype of the run: all numbers of {} are {}, stored wider, so "
                    "it is taken for {} (attribute dtype of the file)",
                    wider, name_of(most), name_of(most)));
  return most;
}

class BareTrace final : public TraceReader, public PlaceReader {
 public:
  explicit BareTrace(const std::string& path)
      : file_(Hdf5File::open_unsealed(path)), rows_(bare_rows(file_)) {
    check(file_.has("/tensors"),
          "{}: has no group /tensors: a trace has its tensors there, by pass, layer and point "
          "(traces/README.md, The least trace)",
          path);
    for (const std::string& name : file_.names("/tensors")) list_pass(name);
    make_manifest();
    for (auto& [pass, tensors] : stored_)
      std::ranges::sort(tensors, {}, [this](const Stored& tensor) {
        return std::pair(manifest_.graph.index_of(tensor.place), tensor.request);
      });
    known_.resize(rows_.size());
  }

  const Manifest& manifest() const override { return manifest_; }
  int passes() const override { return static_cast<int>(rows_.size()); }
  bool complete() const override { return true; }
  const std::vector<std::string>& problems() const override { return problems_; }

  Pass read(int i, bool data) override {
    check(i >= 0 && i < passes(), "{}: pass {} was wanted of {}", file_.path(), i, passes());
    std::optional<Pass>& known = known_[i];
    if (known && !data) return *known;
    Pass pass = load(rows_[i], known ? &*known : nullptr, [](const Place&) { return true; });
    if (!known) {
      known = pass;
      for (RecordedTensor& tensor : known->tensors) tensor.data = {};
    }
    return data ? pass : *known;
  }

  Pass read_places(int i, const WantedPlaces& wanted) override {
    check(i >= 0 && i < passes(), "{}: pass {} was wanted of {}", file_.path(), i, passes());
    return load(rows_[i], nullptr, wanted);
  }

 private:
  // Names are read forgivingly (pass3, pass000003), and whatever cannot be understood is an error:
  // a tensor that is passed over would be one that nobody judged.
  void list_pass(const std::string& name) {
    const std::optional<int32_t> number = number_after(name, "pass");
    const std::string path = "/tensors/" + name;
    check(number.has_value(), "{}: {} was wanted to be named as a pass, as pass000000",
          file_.path(), shown(path));
    check(std::ranges::count(rows_, *number, &PassInfo::pass) > 0,
          "{}: there are tensors of pass {}, and no row of it: /passes/pass has a number a row",
          file_.path(), *number);
    check(!stored_.contains(*number), "{}: pass {} is there twice under /tensors", file_.path(),
          *number);
    std::vector<Stored>& tensors = stored_[*number];
    for (const std::string& part : file_.names(path)) {
      const std::optional<int32_t> layer = number_after(part, "layer");
      check(layer || part == "model",
            "{}: {}/{} was wanted to be named layer000000 or model, which is of no layer",
            file_.path(), path, shown(part));
      check(!layer || *layer < kMostLayers, "{}: {}/{}: a model has at most {} layers",
            file_.path(), path, shown(part), kMostLayers);
      for (const std::string& tensor : file_.names(path + "/" + part))
        list_tensor(path + "/" + part + "/" + tensor, tensor, layer.value_or(-1), tensors);
    }
  }

  // Sizes are added up against the file's: HDF5 lets two datasets share their bytes, by which a
  // small file would claim more memory than there is.
  void list_tensor(const std::string& path, const std::string& name, int layer,
                   std::vector<Stored>& tensors) {
    const auto [p, request] = point_of(name);
    std::vector<std::string_view> names;
    if (p == nullptr)
      for (const Point& one : kPoints) names.push_back(one.name);
    check(p != nullptr, "{}: {} is of no point{} (`lockstep points` lists them)", file_.path(),
          shown(path), did_you_mean(name, names));
    check(p->per_layer == (layer >= 0), "{}: {} is of {}: write it under {}", file_.path(), path,
          p->per_layer ? "a layer" : "no layer", p->per_layer ? "layer000000" : "model");
    const Stored tensor{path, {p, layer}, request};
    const auto same = [&](const Stored& other) {
      return other.place == tensor.place && other.request == tensor.request;
    };
    check(std::ranges::none_of(tensors, same), "{}: {} is there twice, under two names",
          file_.path(), path);
    bytes_ += file_.stored_bytes(path);
    check(bytes_ <= file_.bytes(),
          "{}: its tensors are larger together than the file is: some share their bytes",
          file_.path());
    tensors.push_back(tensor);
  }

  std::string root_text(const char* name) const {
    return file_.has("/", name) ? file_.text("/", name) : "";
  }

  // The model is known by its tensors alone: which points there are, in which layers (QwenShape).
  void make_manifest() {
    manifest_.provenance = file_.texts("/");
    if (file_.has("/provenance"))
      for (const auto& [name, value] : file_.texts("/provenance"))
        manifest_.provenance[name] = value;
    for (const char* name : {"dtype", "selection", "schema_json"}) manifest_.provenance.erase(name);
    if (const std::string schema = root_text("schema_json"); !schema.empty())
      manifest_.contracts = contracts_from_json(schema, file_.path());
    manifest_.selection = root_text("selection");
    manifest_.level = TraceLevel::full;
    std::vector<Place> shown;
    for (const auto& [pass, tensors] : stored_)
      for (const Stored& tensor : tensors) shown.push_back(tensor.place);
    const QwenShape shape = QwenShape::showing(shown);
    check(shape.layers <= kMostLayers, "a model of at most {} layers was wanted, found {}",
          kMostLayers, shape.layers);
    manifest_.graph = qwen_graph(shape);
    manifest_.graph_known = false;
    const std::string dtype = root_text("dtype");
    manifest_.dtype = dtype.empty() ? dtype_found(file_, stored_, problems_)
                                    : meaning_of(dtype, file_.path() + ": dtype", dtype_from);
    check(is_float(manifest_.dtype) && manifest_.dtype != DType::f64,
          "{}: its dtype was wanted to be bf16, fp16 or fp32, found {}", file_.path(),
          name_of(manifest_.dtype));
  }

  // known: the same pass, whole, with digests; null: it has not been read yet. Tensors that tell
  // which rows have logits are always read.
  Pass load(const PassInfo& rows, const Pass* known, const WantedPlaces& wanted) const {
    Pass pass{.info = rows};
    const auto found = stored_.find(rows.pass);
    if (found == stored_.end()) return pass;
    std::vector<Stored> tensors = found->second;
    std::erase_if(tensors, [&](const Stored& tensor) {
      return tensor.place.point->rows != RowDomain::logit && !wanted(tensor.place);
    });
    std::vector<Tensor> data;
    for (const Stored& tensor : tensors)
      data.push_back(bare_tensor(file_, tensor.path, *tensor.place.point, manifest_.dtype));
    for (size_t i = 0; i < data.size(); ++i)
      if (tensors[i].place.point->rows == RowDomain::logit)
        put_logit_rows(data[i].view().rows(), file_.path() + ": " + tensors[i].path, pass.info);
    for (size_t i = 0; i < data.size(); ++i)
      pass.tensors.push_back(
          recorded(tensors[i], data[i], pass.info, known ? &known->tensors[i] : nullptr));
    put_top_logits(pass);
    return pass;
  }

  // Digests are made here, once: the writer of a bare trace has none.
  RecordedTensor recorded(const Stored& stored, const Tensor& data, const PassInfo& info,
                          const RecordedTensor* known) const {
    RecordedTensor tensor{.point = stored.place.point,
                          .layer = stored.place.layer,
                          .dtype = data.view().dtype,
                          .shape = data.view().shape,
                          .data = data};
    const std::string where = file_.path() + ": " + stored.path;
    tensor.rows = tensor.point->is_cache()
                      ? rows_of_cache(data.view().rows(), stored.request, where)
                      : rows_of_tensor(data.view().rows(), *tensor.point, info, where);
    if (known != nullptr) {
      tensor.digest = known->digest;
      tensor.row_hashes = known->row_hashes;
      return tensor;
    }
    tensor.row_hashes = row_hashes_of(data);
    tensor.digest = tensor.point->is_cache()
                        ? digest_of_rows(tensor.row_hashes, data.view().count())
                        : digest_of(data);
    return tensor;
  }

  Hdf5File file_;
  std::vector<PassInfo> rows_;                     // by pass, logit rows left out
  std::map<int32_t, std::vector<Stored>> stored_;  // by number of the pass
  int64_t bytes_ = 0;                              // of all of them
  Manifest manifest_;
  std::vector<std::string> problems_ = {kUnsealed};
  std::vector<std::optional<Pass>> known_;  // without data
};

}  // namespace

std::unique_ptr<TraceReader> open_bare(const std::string& path) {
  return std::make_unique<BareTrace>(path);
}

}  // namespace lockstep
