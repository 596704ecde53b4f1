// Digests as text, for people and for programs that read no trace: one JSON object a line.
#include "traces/journal_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "traces/columns.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

// 64 bits do not fit the numbers of most readers of JSON.
std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

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

}  // namespace

std::string journal_lines(const Pass& pass, int64_t seq) {
  std::string lines = pass_object(pass).dump() + "\n";
  for (const RecordedTensor& tensor : pass.tensors)
    lines += tensor_object(pass.info.pass, tensor, seq++).dump() + "\n";
  return lines;
}

}  // namespace lockstep
