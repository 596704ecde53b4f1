// The order in which a segment is written is what makes it safe: tensors go out as they come, each
// under its own checksum in the index; then the seal begins, and everything that is small and
// structural (attributes, columns, summary, manifest) lies behind it and is checked as a whole
// before HDF5 parses it. HDF5 gives a tensor its place in the file and other threads may put the
// bytes there, also when HDF5 has closed the file; the seal is written after the last of them.
#include "traces/segment.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "traces/manifest.h"
#include "traces/summary.h"

namespace lockstep {
namespace {

// The trace may be older than these columns.
constexpr const char* kDraw = "requests/draw";
constexpr const char* kMaxNew = "requests/max_new";
constexpr const char* kStopped = "requests/stopped";

// Bytes of a tensor that take longer to write than to hand over.
constexpr int64_t kWorthHandingOver = int64_t{256} << 10;

// Appends `part` to a flat column and closes its entry in `edges`.
void append(const std::vector<int32_t>& part, std::vector<int32_t>& flat,
            std::vector<int64_t>& edges) {
  flat.insert(flat.end(), part.begin(), part.end());
  edges.push_back(std::ssize(flat));
}

// Requests are few and known late: their columns are made when a file ends.
struct RequestColumns {
  std::vector<int32_t> id, sampled, prompt, forced, tokens, argmax;
  std::vector<int64_t> prompt_edges{0}, forced_edges{0}, tokens_edges{0}, argmax_edges{0};
  std::vector<std::string> name, draw;
  std::vector<int64_t> max_new;
  std::vector<int32_t> stopped;
};

template <typename C, typename Visit>
void visit_requests(C& c, Visit visit) {
  visit("requests/id", c.id);
  visit("requests/name", c.name);
  visit("requests/sampled", c.sampled);
  visit("requests/prompt", c.prompt);
  visit("requests/prompt_edges", c.prompt_edges);
  visit("requests/forced", c.forced);
  visit("requests/forced_edges", c.forced_edges);
  visit("requests/tokens", c.tokens);
  visit("requests/tokens_edges", c.tokens_edges);
  visit("requests/argmax", c.argmax);
  visit("requests/argmax_edges", c.argmax_edges);
}

void write_requests(const std::vector<RequestInfo>& requests, Hdf5File& file) {
  RequestColumns columns;
  for (const RequestInfo& request : requests) {
    columns.id.push_back(request.id);
    columns.name.push_back(request.name);
    columns.sampled.push_back(request.sampled ? 1 : 0);
    columns.draw.push_back(draw_json_of(request.draw));
    columns.max_new.push_back(request.max_new);
    columns.stopped.push_back(request.stopped ? 1 : 0);
    append(request.prompt, columns.prompt, columns.prompt_edges);
    append(request.forced, columns.forced, columns.forced_edges);
    append(request.tokens, columns.tokens, columns.tokens_edges);
    append(request.argmax, columns.argmax, columns.argmax_edges);
  }
  visit_requests(columns, [&](const char* path, const auto& c) { file.write(path, c); });
  file.write(kDraw, columns.draw);
  file.write(kMaxNew, columns.max_new);
  file.write(kStopped, columns.stopped);
}

std::vector<RequestInfo> read_requests(const Hdf5File& file) {
  RequestColumns columns;
  visit_requests(columns, [&]<typename T>(const char* path, std::vector<T>& column) {
    column = file.read<T>(path);
  });
  if (file.has(kDraw)) columns.draw = file.read<std::string>(kDraw);
  columns.draw.resize(columns.id.size());
  if (file.has(kMaxNew)) columns.max_new = file.read<int64_t>(kMaxNew);
  columns.max_new.resize(columns.id.size(), -1);
  if (file.has(kStopped)) columns.stopped = file.read<int32_t>(kStopped);
  columns.stopped.resize(columns.id.size());
  // The edges are checked here, entry by entry, for these columns are not among those of
  // check_sound().
  const auto part = [&](const std::vector<int32_t>& flat, const std::vector<int64_t>& edges,
                        size_t i) {
    const bool sound = edges.size() == columns.id.size() + 1 && edges[i] >= 0 &&
                       edges[i] <= edges[i + 1] && edges[i + 1] <= std::ssize(flat);
    check(sound, "{}: the columns of its requests do not fit each other: it is damaged",
          file.path());
    return std::vector<int32_t>(flat.begin() + edges[i], flat.begin() + edges[i + 1]);
  };
  check(columns.name.size() == columns.id.size() && columns.sampled.size() == columns.id.size(),
        "{}: the columns of its requests do not fit each other: it is damaged", file.path());
  std::vector<RequestInfo> requests;
  for (size_t i = 0; i < columns.id.size(); ++i)
    requests.push_back({.id = columns.id[i],
                        .name = columns.name[i],
                        .prompt = part(columns.prompt, columns.prompt_edges, i),
                        .forced = part(columns.forced, columns.forced_edges, i),
                        .tokens = part(columns.tokens, columns.tokens_edges, i),
                        .argmax = part(columns.argmax, columns.argmax_edges, i),
                        .sampled = columns.sampled[i] != 0,
                        .draw = draw_from_json(columns.draw[i], file.path()),
                        .max_new = columns.max_new[i],
                        .stopped = columns.stopped[i] != 0});
  check_requests(requests, file.path());
  return requests;
}

// Where version 2.0 had a column.
std::string path_of_2_0(const std::string& path) {
  const std::string parts = std::string(kIndexParts) + "/";
  return path.starts_with(parts) ? "index/" + path.substr(parts.size()) : path;
}

// Columns of one length share the scale seq, so that viewers draw them against each other.
void write_columns(const Columns& columns, Hdf5File& file) {
  visit_columns(columns, [&](const std::string& path, const auto& column, Columns::Per per) {
    std::vector<int64_t> dims = {std::ssize(column)};
    const int64_t rows = std::ssize(columns.logits.request);
    if (per == Columns::Per::best && rows > 0) dims = {rows, dims[0] / rows};
    file.write(path, column, dims);
  });
  file.make_scale("index/seq", "seq");
  visit_index(columns.index, [&](const std::string& path, const auto&, Columns::Per per) {
    if (per == Columns::Per::tensor && path != "index/seq") file.attach_scale(path, 0, "index/seq");
  });
}

void write_graph(const Graph& graph, Hdf5File& file) {
  const GraphColumns columns = columns_of(graph);
  file.write("/graph/point", columns.point);
  file.write("/graph/layer", columns.layer);
  file.write("/graph/input_edges", columns.input_edges);
  file.write("/graph/input", columns.input);
}

Graph read_graph(const Hdf5File& file) {
  return graph_from({.point = file.read<std::string>("graph/point"),
                     .layer = file.read<int32_t>("graph/layer"),
                     .input = file.read<int32_t>("graph/input"),
                     .input_edges = file.read<int64_t>("graph/input_edges")},
                    file.path());
}

// The attributes of the root; `complete` is the last thing that is written to a file.
void write_manifest(const Manifest& manifest, Hdf5File& file) {
  for (const auto& [name, value] : manifest.provenance)
    if (name != "schema_json") file.set("/provenance", name.c_str(), value);
  file.set("/provenance", "schema_json", contracts_json_of(manifest));
  file.set("/", "format", kFormat);
  file.set("/", "format_version", kFormatVersion);
  file.set("/", "default", "summary");
  file.set("/", "NX_class", "NXroot");
  file.set("/", "level", name_of(manifest.level));
  const auto run_id = manifest.provenance.find("run_id");
  file.set("/", "run_id", run_id == manifest.provenance.end() ? "" : run_id->second);
  file.set("/", "rank", 0);
  file.set("/", "world_size", 1);
  file.set("/", "dtype", std::string(name_of(manifest.dtype)));
  write_graph(manifest.graph, file);
  file.set("/", "selection", manifest.selection);
  file.set("/", "complete", 1);
}

}  // namespace

SegmentWriter::SegmentWriter(const std::string& path, int64_t seq, WriteBehind* behind)
    : file_(Hdf5File::create(path)), seq_(seq), behind_(behind) {
  if (behind != nullptr) writes_ = std::make_shared<WriteBehind::Writes>(file_.written());
  for (const char* group :
       {"/graph", "/provenance", "/requests", "/passes", kIndexParts, "/logits", "/tensors"})
    file_.make_group(group);
}

SegmentWriter::~SegmentWriter() {
  if (writes_) behind_->drop(*writes_);
}

void SegmentWriter::add(const Pass& pass) {
  check_has_digests(pass);
  for (const RecordedTensor& tensor : pass.tensors) {
    const TensorView& data = tensor.data;
    if (data.empty()) continue;
    const std::string path = path_of(pass.info.pass, tensor);
    if (writes_ && data.bytes() >= kWorthHandingOver)
      behind_->put(writes_, file_.place_tensor(path, data), tensor.data);
    else
      file_.write_tensor(path, data);
    bytes_ += data.bytes();
  }
  columns_.append(pass, seq_);
  seq_ += std::ssize(pass.tensors);
}

void SegmentWriter::finish(const Manifest& manifest) {
  end(manifest);
  settle();
}

void SegmentWriter::end(const Manifest& manifest) {
  // Tensors are checked one by one as they are read; the rest is small and checked as a whole.
  // Their attributes are texts, which HDF5 keeps in a heap: they too must come after this.
  file_.seal_from_here();
  const Columns::Index& index = columns_.index;
  for (size_t i = 0; i < index.seq.size(); ++i)
    if (!index.path[i].empty())
      file_.set(index.path[i],
                {{"seq", index.seq[i]}, {"dtype", index.dtype[i]}, {"axes", index.axes[i]}});
  write_requests(manifest.requests, file_);
  write_columns(columns_, file_);
  write_summary(columns_, manifest.graph, file_);
  write_manifest(manifest, file_);
  file_.close();
  columns_ = {};
}

void SegmentWriter::settle() {
  if (writes_) behind_->wait(*writes_);
  file_.seal();
}

SegmentReader::SegmentReader(const std::string& path) : SegmentReader(Hdf5File::open(path)) {}

SegmentReader::SegmentReader(Hdf5File file) : file_(std::move(file)) {
  const std::string& path = file_.path();
  const std::string format = file_.text("/", "format");
  check_format(format, file_.text("/", "format_version"), path);
  check(file_.has("/", "complete") && file_.number("/", "complete") == 1,
        "{}: its writing did not end (no attribute complete = 1): use the journal beside it", path);
  columns_.inherited_known = file_.has(kInheritedEdges);
  const bool has_parts = file_.has(kIndexParts);
  visit_columns(columns_,
                [&]<typename T>(const std::string& path, std::vector<T>& column, Columns::Per) {
                  column = file_.read<T>(has_parts ? path : path_of_2_0(path));
                });
  columns_.check_sound(path, file_.bytes());
}

Manifest SegmentReader::manifest() const {
  Manifest manifest;
  manifest.provenance = file_.texts("/provenance");
  manifest.contracts = contracts_from_json(file_.text("/provenance", "schema_json"), file_.path());
  manifest.provenance.erase("schema_json");
  manifest.graph = read_graph(file_);
  manifest.dtype = meaning_of(file_.text("/", "dtype"), file_.path(), dtype_from);
  manifest.level = meaning_of(file_.text("/", "level"), file_.path(), trace_level_from);
  manifest.selection = file_.text("/", "selection");
  manifest.requests = read_requests(file_);
  return manifest;
}

std::string SegmentReader::run_id() const { return file_.text("/", "run_id"); }

void SegmentReader::open_tensors() const {
  for (const std::string& path : columns_.index.path)
    if (!path.empty()) file_.stored_bytes(path);
}

Pass SegmentReader::read(size_t i, const WantedPlaces& wanted) const {
  Pass pass = columns_.pass_at(i);
  size_t at = columns_.tensor_edges[i];
  for (RecordedTensor& tensor : pass.tensors) {
    const std::string& path = columns_.index.path[at++];
    if (path.empty() || !wanted({tensor.point, tensor.layer})) continue;
    tensor.data = file_.read_tensor(path, tensor.shape, tensor.dtype);
    // A tensor has two hashes of its bytes, by rows and as a whole, and statistics: all must be
    // those that were written.
    const bool own_rows =
        tensor.row_hashes.empty() || tensor.row_hashes == row_hashes_of(tensor.data);
    const std::string_view other =
        own_rows ? contradiction(tensor.digest, tensor.data) : "row_xxh3";
    check(other.empty(),
          "{}: in pass {}, the tensor {} of {} is not what was written (its {} differs): the file "
          "is damaged",
          file_.path(), pass.info.pass, tensor.point->name,
          tensor.layer < 0 ? "the model" : fmt::format("layer {}", tensor.layer), other);
  }
  return pass;
}

}  // namespace lockstep
