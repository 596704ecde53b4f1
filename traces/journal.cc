#include "traces/journal.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/base/check.h"
#include "traces/columns.h"
#include "traces/disk.h"
#include "traces/json_number.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// 64 bits do not fit the numbers of most readers of JSON.
std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

uint64_t hash_from(const json& value) {
  const auto text = value.get<std::string>();
  uint64_t x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x, 16);
  check(error == std::errc{} && end == text.data() + text.size() && text.size() == 16,
        "'{}' is no hash", text);
  return x;
}

std::vector<int32_t> ints_from(const json& values) {
  std::vector<int32_t> numbers;
  for (const json& value : values) numbers.push_back(int_from(value));
  return numbers;
}

RowRun run_from(const json& request, const json& first, int32_t count) {
  const RowRun run{int_from(request), int_from(first), count};
  check(is_sound(run), "{} rows from position {} on are none, wanted positions of 0 to {}",
        run.count, run.first, kMostPositions - 1);
  return run;
}

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

// The inverse of pass_object; what is missing or of another type throws JSON's own exception.
Pass pass_from(const json& object) {
  Pass pass;
  pass.info.pass = int_from(object.at("pass"));
  for (const json& row : object.at("rows")) {
    const RowRun one = run_from(row.at(0), row.at(1), 1);
    pass.info.rows.push_back({{one.request, one.first},
                              int_from(row.at(2)),
                              row.at(3),
                              row.at(4).get<int>() == 0 ? Phase::prefill : Phase::decode});
  }
  pass.info.logit_rows = ints_from(object.at("logit_rows"));
  for (const int32_t row : pass.info.logit_rows)
    check(row >= 0 && row < std::ssize(pass.info.rows),
          "the logit_rows of pass {} are to be among its {} rows, found {}", pass.info.pass,
          pass.info.rows.size(), row);
  for (const json& table : object.at("pages"))
    pass.info.pages.push_back({int_from(table.at("request")), ints_from(table.at("pages"))});
  pass.info.inherited_known = object.contains("inherited");
  if (pass.info.inherited_known)
    for (const json& one : object.at("inherited"))
      pass.info.inherited.push_back({int_from(one.at("request")), ints_from(one.at("tokens"))});
  for (const json& row : object.at("logits")) {
    TopLogits& top = pass.logits.emplace_back();
    top.row = {int_from(row.at("request")), int_from(row.at("position"))};
    top.chosen = int_from(row.at("chosen"));
    top.ids = ints_from(row.at("ids"));
    for (const json& value : row.at("values")) top.values.push_back(double_from(value));
  }
  return pass;
}

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

Digest digest_from(const json& object) {
  Digest digest{.hash = hash_from(object.at("xxh3")),
                .count = object.at("n"),
                .nan = object.at("nan"),
                .pos_inf = object.at("posinf"),
                .neg_inf = object.at("neginf"),
                .zeros = object.at("zeros"),
                .subnormals = object.at("subnormal"),
                .min = double_from(object.at("min")),
                .max = double_from(object.at("max")),
                .absmax = double_from(object.at("absmax")),
                .absmax_index = object.at("absmax_at"),
                .mean = double_from(object.at("mean")),
                .m2 = double_from(object.at("m2")),
                .sum_abs = double_from(object.at("sum_abs")),
                .sum_squares = double_from(object.at("sum_squares"))};
  for (const auto& [bin, count] : object.at("exponents").items())
    digest.exponents.at(std::stoul(bin)) = count;
  return digest;
}

RecordedTensor tensor_from(const json& object) {
  const auto name = object.at("point").get<std::string>();
  const auto shape = object.at("shape").get<std::vector<int64_t>>();
  RecordedTensor tensor{.point = find_point(name),
                        .layer = int_from(object.at("layer")),
                        .dtype = dtype_from(object.at("dtype").get<std::string>()),
                        .shape = Shape(shape),
                        .digest = digest_from(object)};
  check(tensor.point != nullptr, "the point '{}' is not known here: it was renamed", name);
  for (const json& run : object.at("rows"))
    append_run(run_from(run.at(0), run.at(1), int_from(run.at(2))), tensor.rows);
  check(!shape.empty() && std::ssize(tensor.rows) == shape[0], "{} has names of {} rows", name,
        tensor.rows.size());
  for (const json& hash : object.at("row_xxh3")) tensor.row_hashes.push_back(hash_from(hash));
  const std::string_view other = contradiction(tensor.digest, tensor.shape.count(),
                                               double_from(object.at("rms")), tensor.row_hashes);
  check(other.empty(), "the digest of {} contradicts itself in its {}", name, other);
  return tensor;
}

}  // namespace

std::string journal_lines(const Pass& pass, int64_t seq) {
  std::string lines = pass_object(pass).dump() + "\n";
  for (const RecordedTensor& tensor : pass.tensors)
    lines += tensor_object(pass.info.pass, tensor, seq++).dump() + "\n";
  return lines;
}

Journal read_journal(const std::string& path) {
  std::istringstream text(read_file(path));
  std::string line;
  check(static_cast<bool>(std::getline(text, line)), "{}: a journal was wanted, the file is empty",
        path);
  Journal journal{.saved = manifest_from(line, path)};
  size_t missing = 0;  // tensors that the last pass still lacks
  int64_t number = 1;
  try {
    while (std::getline(text, line)) {
      ++number;
      // A line without its line break was cut, even where what is left of it is JSON.
      check(!text.eof(), "it has no end");
      const json object = json::parse(line);
      const auto kind = object.at("kind").get<std::string>();
      check((kind == "tensor") == (missing > 0), "a line of kind {} is out of place", kind);
      if (kind == "tensor") {
        journal.passes.back().tensors.push_back(tensor_from(object));
        --missing;
      } else if (kind == "pass") {
        Pass pass = pass_from(object);
        missing = object.at("tensors");
        journal.passes.push_back(std::move(pass));
      } else {
        journal.saved = manifest_from(line, path);
      }
    }
    check(missing == 0, "{} tensors of the last pass are missing", missing);
  } catch (const std::exception& error) {  // ours, JSON's, and std::stoul's
    journal.problem = fmt::format("{}: it was cut or damaged at line {} ({}): what follows is lost",
                                  path, number, error.what());
    if (missing > 0) journal.passes.pop_back();
  }
  return journal;
}

}  // namespace lockstep
