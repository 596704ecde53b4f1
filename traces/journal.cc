// The form of a trace that survives its writer: JSON lines, appended and flushed pass by pass, so
// that a run that is killed leaves every pass that it had finished.
//
//   manifest | pass, tensor, tensor, .. | pass, .. | manifest (ended) | result
//
// Digests alone are kept, no tensors. A reader stops at the first line that is cut or makes no
// sense, drops the pass that it belongs to, and says so in `problem`; what stands before is good.
// Since a line names rows by runs, a few bytes may claim any number of them: RowBudget bounds all
// rows of a file by its size.
#include "traces/journal.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/files/json.h"
#include "kernels/files/text.h"
#include "traces/columns.h"
#include "traces/json_number.h"
#include "traces/kept_result.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostJournal = size_t{1} << 36, kMostLine = size_t{1} << 28;  // bytes

// 64 bits do not fit the numbers of most readers of JSON.
std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

uint64_t hash_from(const JsonValue& value) {
  const std::string& text = value.text();
  uint64_t x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x, 16);
  if (error != std::errc{} || end != text.data() + text.size() || text.size() != 16)
    value.refuse("a hash of 16 digits");
  return x;
}

RowRun run_from(const JsonValue& row, int32_t count) {
  const RowRun run{row[0].whole<int32_t>(), row[1].whole<int32_t>(), count};
  check(run.is_sound(), "{} rows from position {} on are none, wanted positions of 0 to {}",
        run.count, run.first, kMostPositions - 1);
  return run;
}

// The line of a pass: what it computed and chose, and how many lines of tensors follow. Where it is
// not known who inherits there is no field, which differs from an empty list.
ordered_json pass_object(const Pass& pass) {
  ordered_json rows = ordered_json::array(), pages = rows, logits = rows;
  for (const PassRow& row : pass.info.rows)
    rows.push_back(
        {row.row.request, row.row.position, row.token, row.slot, static_cast<int>(row.phase)});
  for (const RequestPages& table : pass.info.pages)
    pages.push_back({{"request", table.request}, {"pages", table.pages}});
  for (const TopLogits& top : pass.logits) {
    ordered_json values = ordered_json::array();
    for (double value : top.values) values.push_back(json_number<ordered_json>(value));
    logits.push_back({{"request", top.row.request},
                      {"position", top.row.position},
                      {"chosen", top.chosen},
                      {"margin", json_number<ordered_json>(top.margin())},
                      {"ids", top.ids},
                      {"values", values}});
  }
  ordered_json object = {{"kind", "pass"},
                         {"pass", pass.info.pass},
                         {"tensors", pass.tensors.size()},
                         {"rows", rows},  // request, position, token, slot, phase
                         {"logit_rows", pass.info.logit_rows},
                         {"pages", pages},
                         {"logits", logits}};
  if (!pass.info.inherited_known) return object;
  ordered_json& inherited = object["inherited"] = ordered_json::array();
  for (const Inherited& one : pass.info.inherited)
    inherited.push_back({{"request", one.request}, {"tokens", one.tokens}});
  return object;
}

// The inverse of pass_object.
Pass pass_from(const JsonValue& object) {
  Pass pass;
  pass.info.pass = object["pass"].whole<int32_t>();
  for (const JsonValue& row : object["rows"].items()) {
    const RowRun one = run_from(row, 1);
    pass.info.rows.push_back({{one.request, one.first},
                              row[2].whole<int32_t>(),
                              row[3].whole<int64_t>(),
                              row[4].whole<int>() == 0 ? Phase::prefill : Phase::decode});
  }
  pass.info.logit_rows = object["logit_rows"].wholes<int32_t>();
  for (const int32_t row : pass.info.logit_rows)
    check(row >= 0 && row < std::ssize(pass.info.rows),
          "the logit_rows of pass {} are to be among its {} rows, found {}", pass.info.pass,
          pass.info.rows.size(), row);
  for (const JsonValue& table : object["pages"].items())
    pass.info.pages.push_back(
        {table["request"].whole<int32_t>(), table["pages"].wholes<int32_t>()});
  pass.info.inherited_known = !object["inherited"].is_missing();
  if (pass.info.inherited_known)
    for (const JsonValue& one : object["inherited"].items())
      pass.info.inherited.push_back(
          {one["request"].whole<int32_t>(), one["tokens"].wholes<int32_t>()});
  for (const JsonValue& row : object["logits"].items()) {
    TopLogits& top = pass.logits.emplace_back();
    top.row = {row["request"].whole<int32_t>(), row["position"].whole<int32_t>()};
    top.chosen = row["chosen"].whole<int32_t>();
    top.ids = row["ids"].wholes<int32_t>();
    for (const JsonValue& value : row["values"].items()) top.values.push_back(value.real());
  }
  return pass;
}

// The line of a tensor: where it was shown, its rows, its digest with all bins that are not empty.
ordered_json tensor_object(int32_t pass, const RecordedTensor& tensor, int64_t seq) {
  const Digest& d = tensor.digest;
  ordered_json rows = ordered_json::array(), hashes = rows, exponents = ordered_json::object();
  for (const RowRun& run : runs_of(tensor.rows))
    rows.push_back({run.request, run.first, run.count});
  for (uint64_t hash : tensor.row_hashes) hashes.push_back(hex(hash));
  for (size_t bin = 0; bin < d.exponents.size(); ++bin)
    if (d.exponents[bin] != 0) exponents[std::to_string(bin)] = d.exponents[bin];
  return {{"kind", "tensor"},
          {"seq", seq},
          {"pass", pass},
          {"layer", tensor.layer},
          {"point", tensor.point->name},
          {"dtype", name_of(tensor.dtype)},
          {"shape", tensor.shape.extents()},
          {"rows", rows},  // runs of consecutive positions: request, first, count
          {"xxh3", hex(d.hash)},
          {"n", d.count},
          {"nan", d.nan},
          {"posinf", d.pos_inf},
          {"neginf", d.neg_inf},
          {"zeros", d.zeros},
          {"subnormal", d.subnormals},
          {"min", json_number<ordered_json>(d.min)},
          {"max", json_number<ordered_json>(d.max)},
          {"absmax", json_number<ordered_json>(d.absmax)},
          {"absmax_at", d.absmax_index},
          {"mean", json_number<ordered_json>(d.mean)},
          {"m2", json_number<ordered_json>(d.m2)},
          {"rms", json_number<ordered_json>(d.rms())},
          {"sum_abs", json_number<ordered_json>(d.sum_abs)},
          {"sum_squares", json_number<ordered_json>(d.sum_squares)},
          {"exponents", exponents},
          {"row_xxh3", hashes}};
}

Digest digest_from(const JsonValue& object) {
  Digest digest{.hash = hash_from(object["xxh3"]),
                .count = object["n"].whole<int64_t>(),
                .nan = object["nan"].whole<int64_t>(),
                .pos_inf = object["posinf"].whole<int64_t>(),
                .neg_inf = object["neginf"].whole<int64_t>(),
                .zeros = object["zeros"].whole<int64_t>(),
                .subnormals = object["subnormal"].whole<int64_t>(),
                .min = object["min"].real(),
                .max = object["max"].real(),
                .absmax = object["absmax"].real(),
                .absmax_index = object["absmax_at"].whole<int64_t>(),
                .mean = object["mean"].real(),
                .m2 = object["m2"].real(),
                .sum_abs = object["sum_abs"].real(),
                .sum_squares = object["sum_squares"].real()};
  for (const auto& [name, count] : object["exponents"].fields()) {
    size_t bin = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), bin);
    if (error != std::errc{} || end != name.data() + name.size() || bin >= digest.exponents.size())
      fail("{} is of no bin of exponents", count.where());
    digest.exponents[bin] = count.whole<uint32_t>();
  }
  return digest;
}

// The inverse of tensor_object. A digest that contradicts itself is damage.
RecordedTensor tensor_from(const JsonValue& object, RowBudget& budget) {
  const std::string& name = object["point"].text();
  const auto shape = object["shape"].wholes<int64_t>();
  check(is_shape(shape), "the shape of {} is none that a tensor can have", shown(name));
  RecordedTensor tensor{.point = find_point(name),
                        .layer = object["layer"].whole<int32_t>(),
                        .dtype = dtype_from(object["dtype"].text()),
                        .shape = Shape(shape),
                        .digest = digest_from(object)};
  check(tensor.point != nullptr, "the point '{}' is not known here: it was renamed", shown(name));
  for (const JsonValue& run : object["rows"].items()) {
    const RowRun rows = run_from(run, run[2].whole<int32_t>());
    check(budget.take(rows.count), "its tensors {}", kTooManyRows);
    rows.append_to(tensor.rows);
  }
  check(!shape.empty() && std::ssize(tensor.rows) == shape[0], "{} has names of {} rows", name,
        tensor.rows.size());
  for (const JsonValue& hash : object["row_xxh3"].items())
    tensor.row_hashes.push_back(hash_from(hash));
  const std::string_view other =
      contradiction(tensor.digest, tensor.shape.count(), object["rms"].real(), tensor.row_hashes);
  check(other.empty(), "the digest of {} contradicts itself in its {}", name, other);
  return tensor;
}

}  // namespace

// A line for the pass, which says how many tensors follow, and a line for each.
std::string journal_lines(const Pass& pass, int64_t seq) {
  std::string lines = pass_object(pass).dump() + "\n";
  for (const RecordedTensor& tensor : pass.tensors)
    lines += tensor_object(pass.info.pass, tensor, seq++).dump() + "\n";
  return lines;
}

// A journal may end anywhere (that is what it is for): all passes before the damage are kept, and
// one that lacks tensors is left out.
Journal read_journal(const std::string& path) {
  const std::string all = read_text(path, kMostJournal);
  std::string_view rest = all;
  // Takes the next line; one without its line break was cut, even where what is left is JSON.
  const auto next_line = [&rest] {
    const size_t end = rest.find('\n');
    check(end != rest.npos, "it has no end");
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return line;
  };
  check(!all.empty(), "{}: a journal was wanted, the file is empty", path);
  Journal journal{.saved = manifest_from(rest.substr(0, rest.find('\n')), path)};
  size_t missing = 0;  // tensors that the last pass still lacks
  int64_t number = 1;
  RowBudget budget(std::ssize(all));
  try {
    const auto at_result = [&] {
      return journal.saved.ended() && begins_result(rest, kResultLine);
    };
    // The number of tensors that a pass promises says whether the next line may be of another kind.
    for (next_line(); !rest.empty() && !at_result();) {
      ++number;
      const std::string_view line = next_line();
      const JsonDocument document(line, {fmt::format("line {}", number), "", kMostLine});
      const JsonValue object = document.root();
      const std::string& kind = object["kind"].text();
      check((kind == "tensor") == (missing > 0), "a line of kind {} is out of place", shown(kind));
      if (kind == "tensor") {
        journal.passes.back().tensors.push_back(tensor_from(object, budget));
        --missing;
      } else if (kind == "pass") {
        Pass pass = pass_from(object);
        missing = object["tensors"].whole<size_t>();
        journal.passes.push_back(std::move(pass));
      } else {
        journal.saved = manifest_from(line, path);
      }
    }
    check(missing == 0, "{} tensors of the last pass are missing", missing);
  } catch (const Error& error) {
    journal.problem = fmt::format("{}: it was cut or damaged at line {} ({}): what follows is lost",
                                  path, number, error.what());
    if (missing > 0) journal.passes.pop_back();
  }
  return journal;
}

}  // namespace lockstep
