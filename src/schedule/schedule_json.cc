// Foreign lists name opcodes as they like, cut rows into blocks of their own, and may leave out
// everything that follows from opcode and rows: "opcodes", "block" and "columns" translate them.
// Every number has a bound before it is used for a size, and an error names the field that it is
// about.
#include "src/schedule/schedule_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/base/printable.h"
#include "kernels/files/json.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// No list for a real model comes near these.
constexpr size_t kMostText = size_t{256} << 20;
constexpr int kMostCounters = 1 << 20;
constexpr int64_t kMostHeads = 1 << 12, kMostHeadDim = 1 << 16;
constexpr int64_t kMostWidth = int64_t{1} << 32;  // numbers of a row, of any model
constexpr int64_t kMostLayers = 1 << 12;

Json span_json(const Schedule& schedule, const Span& span) {
  const ScheduledTensor& tensor = schedule.tensors[span.tensor];
  return {tensor.point, tensor.layer < 0 ? Json() : Json(tensor.layer), span.begin, span.end};
}

Json uses_json(const std::vector<Instruction::CounterUse>& uses) {
  Json json = Json::array();
  for (const Instruction::CounterUse& use : uses) json.push_back({use.counter, use.value});
  return json;
}

Json instruction_json(const Schedule& schedule, const Instruction& in) {
  Json row = {in.id,
              in.queue,
              in.name,
              in.layer < 0 ? Json() : Json(in.layer),
              in.begin,
              in.end,
              in.share,
              uses_json(in.waits),
              uses_json(in.raises)};
  for (const auto* spans : {&in.reads, &in.writes}) {
    Json json = Json::array();
    for (const Span& span : *spans) json.push_back(span_json(schedule, span));
    row.push_back(json);
  }
  return row;
}

Json tensor_json(const ScheduledTensor& tensor) {
  return {{"point", tensor.point}, {"layer", tensor.layer < 0 ? Json() : Json(tensor.layer)},
          {"width", tensor.width}, {"shares", tensor.shares},
          {"given", tensor.given}, {"memory", tensor.memory}};
}

std::string lines_of(const Json& items) {
  std::vector<std::string> lines;
  for (const Json& item : items) lines.push_back(item.dump());
  return fmt::format("[\n    {}\n  ]", fmt::join(lines, ",\n    "));
}

int layer_of(const JsonValue& value, const ScheduledModel& model) {
  return value ? value.whole<int>(0, static_cast<int>(std::max<int64_t>(model.layers, 1)) - 1) : -1;
}

std::string near_opcode(std::string_view name) {
  const std::vector<std::string_view> names(kNamesOf<Opcode>.begin(), kNamesOf<Opcode>.end());
  return did_you_mean(name, names);
}

// Makes a schedule of a document.
class ScheduleReader {
 public:
  explicit ScheduleReader(const JsonValue& root) : root_(root) {
    const JsonValue format = root["format"];
    if (!format.is("lockstep-schedule")) format.refuse("\"lockstep-schedule\"");
    const JsonValue version = root["format_version"];
    if (!version.is("1.0")) version.refuse("\"1.0\"");
  }

  Schedule read() {
    read_model();
    made_.queues = root_["queues"].whole<int>(1, kMostQueues);
    made_.kv_shares = optional_whole("kv_shares", 1, 1, kMostShares);
    made_.down_shares = optional_whole("down_shares", 1, 1, kMostShares);
    read_counters();
    read_tensors();
    if (const JsonValue columns = root_["columns"]) read_columns(columns);
    const std::vector<JsonValue> items = root_["instructions"].items();
    if (items.empty()) root_["instructions"].refuse("a list of at least one instruction");
    made_.instructions.reserve(items.size());
    for (const JsonValue& item : items) read_instruction(item);
    return std::move(made_);
  }

 private:
  int64_t optional_whole(std::string_view key, int64_t otherwise, int64_t least, int64_t most) {
    const JsonValue value = root_[key];
    return value ? value.whole<int64_t>(least, most) : otherwise;
  }

  void read_model() {
    const JsonValue json = root_["model"];
    const auto size = [&](std::string_view key, int64_t most = int64_t{1} << 26) {
      return json[key].whole<int64_t>(1, most);
    };
    ScheduledModel& m = made_.model;
    m.layers = size("layers", kMostLayers);
    m.hidden = size("hidden");
    m.heads = size("heads", kMostHeads);
    m.kv_heads = size("kv_heads", kMostHeads);
    m.head_dim = size("head_dim", kMostHeadDim);
    m.intermediate = size("intermediate");
    m.vocab = size("vocab");
    m.qk_norm = json["qk_norm"] && json["qk_norm"].flag();
    if (m.heads % m.kv_heads != 0) json["kv_heads"].refuse("a divisor of the heads");
    if (!json["experts"]) return;
    m.experts = size("experts", kMostHeads);
    m.chosen = size("chosen", m.experts);
    m.expert_intermediate = size("expert_intermediate");
    for (const JsonValue& layer : json["expert_layers"].items())
      m.expert_layers.push_back(layer.whole<int>(0, static_cast<int>(m.layers) - 1));
  }

  // Their names, or how many there are.
  void read_counters() {
    const JsonValue json = root_["counters"];
    if (json.is_list()) {
      made_.counters = json.texts();
      return;
    }
    const auto count = json.whole<int64_t>(0, kMostCounters);
    for (int64_t i = 0; i < count; ++i) made_.counters.push_back(fmt::format("{}", i));
  }

  void read_tensors();

  void read_columns(const JsonValue& columns) {
    names_ = columns.texts();
    for (size_t i = 0; i < names_.size(); ++i)
      if (!columns_.try_emplace(names_[i], i).second) columns[i].refuse("a name that no other has");
    for (const char* needed : {"queue", "opcode", "waits", "raises"})
      if (!columns_.contains(needed)) columns.refuse(fmt::format("{} among them", needed));
  }

  // A list has a value for each column. Null is a layer that there is none of, and reads or writes
  // that follow from the opcode: of nothing else it says what is meant.
  void check_row(const JsonValue& item) const {
    for (const char* key : {"id", "queue", "opcode", "begin", "end", "share", "waits", "raises"})
      if (const JsonValue value = field(item, key); value.is_null())
        refuse_field(item, key, value, "a value ([] for none)");
    if (!item.is_list() || item.size() == names_.size()) return;
    if (names_.empty()) item.refuse("an object, or \"columns\" that name its values,");
    const std::string at =
        item.size() < names_.size() ? fmt::format(", also for \"{}\",", names_[item.size()]) : "";
    item.refuse(fmt::format("a value for each of the {} columns{}", names_.size(), at));
  }

  // A sentence about a field, which in a list has no name.
  [[noreturn]] static void refuse_field(const JsonValue& item, std::string_view key,
                                        const JsonValue& value, std::string_view wanted) {
    fail("{}: its {} is {}, {} was wanted: correct it", item.where(), key, value.said(), wanted);
  }

  // A field has a key in an object, and the column of that name in a list.
  JsonValue field(const JsonValue& item, std::string_view key) const {
    if (!item.is_list()) return item[key];
    const auto column = columns_.find(key);
    return item[column == columns_.end() ? item.size() : column->second];
  }

  void read_instruction(const JsonValue& item);

  Effects effects_at(const JsonValue& item, const Instruction& in) const {
    try {
      return effects_of(made_, in);
    } catch (const Error& error) {
      fail("{}: {}", item.where(), error.what());
    }
  }

  // A name of Lockstep's, or what "opcodes" says it stands for. Any other may be a slip.
  void read_opcode(const JsonValue& item, Instruction& in) const {
    const JsonValue value = field(item, "opcode");
    in.name = value.is_text() ? value.text() : fmt::format("{}", value.whole<int64_t>());
    const JsonValue meaning = root_["opcodes"] ? root_["opcodes"][in.name] : root_["opcodes"];
    const std::string known = meaning ? meaning.text() : in.name;
    const std::optional<Opcode> opcode = find_named<Opcode>(known);
    if (!opcode && meaning) meaning.refuse("an opcode of Lockstep's, or \"other\",");
    if (!opcode)
      fail(
          "{}: its opcode \"{}\" is none of Lockstep's, and \"opcodes\" does not say what it is "
          "(\"other\": one of your own){}",
          item.where(), shown(in.name), near_opcode(in.name));
    in.opcode = *opcode;
    if (in.opcode != Opcode::other) in.name = known;
  }

  // [begin, end) in blocks of so many rows as "block" says of the opcode, otherwise in rows.
  // Without an end it is one block.
  void read_block(const JsonValue& item, Instruction& in) {
    const JsonValue begin = field(item, "begin"), end = field(item, "end");
    const JsonValue blocks = root_["block"];
    const JsonValue block = blocks ? blocks[in.name] : blocks;
    const int64_t rows = block ? block.whole<int64_t>(1, int64_t{1} << 26) : 1;
    if (!begin && in.opcode == Opcode::other) return;
    constexpr int64_t kMost = int64_t{1} << 32;
    const auto first = begin.whole<int64_t>(0, kMost);
    in.begin = first * rows;
    in.end = (end ? end.whole<int64_t>(0, kMost) : first + 1) * rows;
  }

  // [[counter, value], ...]
  std::vector<Instruction::CounterUse> uses_of(const JsonValue& item, std::string_view key) const {
    std::vector<Instruction::CounterUse> uses;
    const JsonValue json = field(item, key);
    if (!json) refuse_field(item, key, json, "a list ([] for none)");
    for (const JsonValue& use : json.items()) {
      const int counter = use[0].whole<int>(0, kMostCounters);
      if (counter >= std::ssize(made_.counters))
        use[0].refuse(fmt::format("one of the {} counters", made_.counters.size()));
      uses.push_back({counter, use[1].whole<int64_t>(0, int64_t{1} << 40)});
    }
    return uses;
  }

  // [[point, layer, begin, end], ...]
  std::vector<Span> spans_of(const JsonValue& json) const {
    std::vector<Span> spans;
    for (const JsonValue& item : json.items()) {
      const auto place = places_.find({item[0].text(), layer_of(item[1], made_.model)});
      if (place == places_.end()) item[0].refuse("a tensor of the schedule and of that layer");
      const auto begin = item[2].whole<int64_t>(0, kMostWidth);
      spans.push_back({place->second, begin, item[3].whole<int64_t>(begin + 1, kMostWidth)});
    }
    return spans;
  }

  JsonValue root_;
  Schedule made_;
  std::map<std::pair<std::string, int>, int> places_;  // of tensors, by point and layer
  std::vector<std::string> names_;                     // of the columns
  std::map<std::string, size_t, std::less<>> columns_;
  std::set<int> ids_;
};

void ScheduleReader::read_tensors() {
  // Without a list of tensors they are those of the model, cut as the shares say.
  const JsonValue json = root_["tensors"];
  if (!json) {
    made_.tensors = tensors_of(made_.model, made_.kv_shares, made_.down_shares);
  } else {
    for (const JsonValue& item : json.items()) {
      ScheduledTensor tensor{.point = item["point"].text(),
                             .layer = layer_of(item["layer"], made_.model),
                             .width = item["width"].whole<int64_t>(1, kMostWidth)};
      if (item["shares"]) tensor.shares = item["shares"].whole<int64_t>(0, 1 << 16);
      tensor.given = item["given"] && item["given"].flag();
      tensor.memory =
          item["memory"] ? item["memory"].text() : fmt::format("{} {}", tensor.point, tensor.layer);
      made_.tensors.push_back(std::move(tensor));
    }
  }
  std::set<std::string_view> memories;
  for (int i = 0; i < std::ssize(made_.tensors); ++i) {
    const ScheduledTensor& t = made_.tensors[i];
    if (!memories.insert(t.memory).second && t.given)
      json[i]["given"].refuse("false, for another tensor is before it in its memory");
    const bool is_new = places_.try_emplace({t.point, t.layer}, i).second;
    if (!is_new) json[i].refuse("a tensor that the list does not have yet");
  }
}

void ScheduleReader::read_instruction(const JsonValue& item) {
  check_row(item);
  Instruction in;
  const JsonValue id = field(item, "id");
  in.id = id ? id.whole<int>(0) : static_cast<int>(made_.instructions.size());
  if (!ids_.insert(in.id).second)
    fail("{}: its id is {}, which another instruction before it has: give each its own",
         item.where(), in.id);
  in.queue = field(item, "queue").whole<int>(0, made_.queues - 1);
  read_opcode(item, in);
  in.layer = layer_of(field(item, "layer"), made_.model);
  read_block(item, in);
  if (const JsonValue share = field(item, "share")) in.share = share.whole<int64_t>(0, 1 << 16);
  in.waits = uses_of(item, "waits");
  in.raises = uses_of(item, "raises");
  // Reads and writes that the list names are taken as they stand, also where the opcode is known:
  // whether they agree is the check's to say.
  const JsonValue reads = field(item, "reads"), writes = field(item, "writes");
  const std::string misfit = misfit_of(made_, in);
  if (!misfit.empty()) fail("{}: {}", item.where(), misfit);
  Effects effects = effects_at(item, in);
  in.reads = reads ? spans_of(reads) : std::move(effects.reads);
  in.writes = writes ? spans_of(writes) : std::move(effects.writes);
  if (in.opcode == Opcode::other && !(reads && writes))
    item.refuse(reads ? "what it writes, for its opcode is not one of Lockstep's"
                      : "what it reads, [] for nothing, for its opcode is not one of Lockstep's");
  made_.instructions.push_back(std::move(in));
}

// Opcodes of somebody else's, which a reader wants declared.
std::string others_of(const Schedule& schedule) {
  Json others = Json::object();
  for (const Instruction& in : schedule.instructions)
    if (in.opcode == Opcode::other) others[in.name] = name_of(Opcode::other);
  return others.empty() ? "" : fmt::format("  \"opcodes\": {},\n", others.dump());
}

}  // namespace

std::string schedule_json(const Schedule& schedule) {
  const ScheduledModel& m = schedule.model;
  Json model = {{"layers", m.layers},     {"hidden", m.hidden},
                {"heads", m.heads},       {"kv_heads", m.kv_heads},
                {"head_dim", m.head_dim}, {"intermediate", m.intermediate},
                {"vocab", m.vocab},       {"qk_norm", m.qk_norm}};
  if (m.experts > 0)
    model.update({{"experts", m.experts},
                  {"chosen", m.chosen},
                  {"expert_intermediate", m.expert_intermediate},
                  {"expert_layers", m.expert_layers}});
  Json tensors = Json::array(), instructions = Json::array();
  for (const ScheduledTensor& tensor : schedule.tensors) tensors.push_back(tensor_json(tensor));
  for (const Instruction& in : schedule.instructions)
    instructions.push_back(instruction_json(schedule, in));
  return fmt::format(
      "{{\n  \"format\": \"lockstep-schedule\",\n  \"format_version\": \"1.0\",\n"
      "  \"model\": {},\n  \"queues\": {},\n  \"kv_shares\": {},\n  \"down_shares\": {},\n"
      "  \"counters\": {},\n  \"tensors\": {},\n{}"
      "  \"columns\": [\"id\", \"queue\", \"opcode\", \"layer\", \"begin\", \"end\", \"share\", "
      "\"waits\", \"raises\", \"reads\", \"writes\"],\n"
      "  \"instructions\": {}\n}}\n",
      model.dump(), schedule.queues, schedule.kv_shares, schedule.down_shares,
      lines_of(Json(schedule.counters)), lines_of(tensors), others_of(schedule),
      lines_of(instructions));
}

Schedule read_schedule(const std::string& path) {
  const JsonDocument document = JsonDocument::read(
      path, "`lockstep schedule --model DIR --json FILE` writes one to look at", kMostText);
  return ScheduleReader(document.root()).read();
}

}  // namespace lockstep
