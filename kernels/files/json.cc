// JSON from files that may be hostile or cut. nlohmann's parser reports events, from which Builder
// makes the tree; it refuses depth beyond 64, a key twice in one object, and numbers that no double
// holds, before these take memory or are resolved in silence.
//
// A JsonValue is a place in a document and knows its way from the root ("points[3].layer"), found
// only when a sentence needs it, so that an error names the place and what was wanted there.
#include "kernels/files/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/files/text.h"

namespace lockstep {

using Json = nlohmann::json;

struct JsonDocument::Tree {
  JsonSource source;
  Json root;
};

namespace {

constexpr size_t kMostDepth = 64;

// Builds the tree from the events of nlohmann's parser, which itself recurses nowhere; it stops it
// at what no document may have, before that takes memory or stack. `trouble` says what it was.
class Builder {
 public:
  Json root;
  std::string trouble;

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return stop("has bytes, which are no JSON"); }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    const auto [entry, fresh] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    field_ = &entry->second;
    return fresh || stop(fmt::format("has the key \"{}\" twice in one object", shown(name)));
  }

  bool parse_error(size_t position, const std::string& token, const Json::exception& error) {
    constexpr int kNoDouble = 406;  // out_of_range: "number overflow"
    if (error.id == kNoDouble)
      return stop(fmt::format("has the number {}, which no double holds", shown(token)));
    return stop(fmt::format("is no JSON from byte {} on", position));
  }

 private:
  bool stop(std::string sentence) {
    trouble = std::move(sentence);
    return false;
  }

  Json* put(Json value) {
    if (open_.empty()) return &(root = std::move(value));
    if (open_.back()->is_object()) return &(*field_ = std::move(value));
    return &open_.back()->get_ref<Json::array_t&>().emplace_back(std::move(value));
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (open_.size() == kMostDepth)
      return stop(fmt::format("is nested more than {} deep", kMostDepth));
    open_.push_back(put(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<Json*> open_;  // from the root inwards; no other container grows meanwhile
  Json* field_ = nullptr;    // where the value of the last key goes
};

const Json& json(const void* at) { return *static_cast<const Json*>(at); }

// Appends the way from `from` to the value `to`; false when it is not in there. It recurses as deep
// as the document, 64 at most.
bool find_way(const Json& from, const void* to, std::string& way) {
  if (&from == to) return true;
  if (!from.is_structured()) return false;
  const size_t length = way.size();
  for (const auto& [key, value] : from.items()) {
    way += from.is_array() ? fmt::format("[{}]", key)
                           : fmt::format("{}{}", way.empty() ? "" : ".", shown(key));
    if (find_way(value, to, way)) return true;
    way.resize(length);
  }
  return false;
}

// How a sentence about the text ends.
std::string end_of(const JsonSource& source) {
  return source.remedy.empty() ? "" : fmt::format(": {}", source.remedy);
}

}  // namespace

JsonDocument::JsonDocument(std::string_view text, const JsonSource& source) {
  check(text.size() <= source.most, "{}: has {} bytes, and at most {} are read{}", source.name,
        text.size(), source.most, end_of(source));
  // nlohmann's parser takes a NUL for the end of the text, and what follows for nothing.
  const size_t nul = text.find('\0');
  check(nul == text.npos, "{}: is no JSON from byte {} on{}", source.name, nul + 1, end_of(source));
  Builder builder;
  // An answer of false to any event ends the parsing there.
  if (!Json::sax_parse(text, &builder))
    fail("{}: {}{}", source.name, builder.trouble, end_of(source));
  tree_ = std::make_unique<const Tree>(Tree{source, std::move(builder.root)});
}

JsonDocument JsonDocument::read(const std::string& path, std::string_view remedy, size_t most) {
  return {read_text(path, most), {path, remedy, most}};
}

JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

JsonValue JsonDocument::root() const { return {tree_.get(), &tree_->root}; }

JsonValue::operator bool() const { return at_ != nullptr && !json(at_).is_null(); }
bool JsonValue::is_null() const { return at_ != nullptr && json(at_).is_null(); }
bool JsonValue::is_object() const { return at_ != nullptr && json(at_).is_object(); }
bool JsonValue::is_list() const { return at_ != nullptr && json(at_).is_array(); }
bool JsonValue::is_text() const { return at_ != nullptr && json(at_).is_string(); }
bool JsonValue::is(bool flag) const { return at_ != nullptr && json(at_) == flag; }
bool JsonValue::is(std::string_view text) const { return is_text() && this->text() == text; }

bool JsonValue::flag() const {
  if (at_ == nullptr || !json(at_).is_boolean()) refuse("true or false");
  return json(at_).get<bool>();
}

const std::string& JsonValue::text() const {
  if (!is_text()) refuse("a text");
  return json(at_).get_ref<const std::string&>();
}

// A whole number beyond 2^53 rounds.
double JsonValue::number() const {
  if (at_ == nullptr || !json(at_).is_number()) refuse("a number");
  return json(at_).get<double>();
}

double JsonValue::real() const {
  if (at_ != nullptr && json(at_).is_number()) return number();
  if (is("NaN")) return std::nan("");
  if (is("Infinity")) return HUGE_VAL;
  if (is("-Infinity")) return -HUGE_VAL;
  refuse("a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
}

std::string JsonValue::wanted_within(Limit least, Limit most) {
  const auto text = [](Limit limit) {
    return limit.negative ? fmt::format("{}", static_cast<int64_t>(limit.bits))
                          : fmt::format("{}", limit.bits);
  };
  const bool open_below = least == Limit::of(INT64_MIN), open_above = most >= Limit::of(INT64_MAX);
  if (open_below && open_above) return "a whole number";
  if (open_above && least <= most) return fmt::format("a whole number of at least {}", text(least));
  if (open_below) return fmt::format("a whole number of at most {}", text(most));
  return fmt::format("a whole number from {} to {}{}", text(least), text(most),
                     least <= most ? "" : ", which none is,");
}

uint64_t JsonValue::whole_within(Limit least, Limit most) const {
  if (at_ == nullptr || !json(at_).is_number_integer()) refuse(wanted_within(least, most));
  const Limit value = json(at_).is_number_unsigned() ? Limit::of(json(at_).get<uint64_t>())
                                                     : Limit::of(json(at_).get<int64_t>());
  if (value < least || value > most) refuse(wanted_within(least, most));
  return value.bits;
}

// A missing field remembers who lacks it: the Error is thrown by whoever reads it, since many
// fields may be missing.
JsonValue JsonValue::operator[](std::string_view key) const {
  if (!is_object()) refuse("an object");
  const auto found = json(at_).find(key);
  if (found != json(at_).end()) return {tree_, &*found};
  JsonValue missing(tree_, nullptr);
  missing.owner_ = at_;
  missing.key_ = key;
  return missing;
}

JsonValue JsonValue::operator[](size_t i) const {
  if (!is_list()) refuse("a list");
  if (i < json(at_).size()) return {tree_, &json(at_)[i]};
  JsonValue missing(tree_, nullptr);
  missing.owner_ = at_;
  missing.place_ = i;
  return missing;
}

size_t JsonValue::size() const {
  if (!is_object() && !is_list()) refuse("a list or an object");
  return json(at_).size();
}

std::vector<JsonValue> JsonValue::items() const {
  if (!is_list()) refuse("a list");
  std::vector<JsonValue> all;
  for (const Json& item : json(at_)) all.push_back({tree_, &item});
  return all;
}

std::vector<std::pair<std::string_view, JsonValue>> JsonValue::fields() const {
  if (!is_object()) refuse("an object");
  std::vector<std::pair<std::string_view, JsonValue>> all;
  for (const auto& [key, value] : json(at_).get_ref<const Json::object_t&>())
    all.emplace_back(key, JsonValue(tree_, &value));
  return all;
}

std::vector<std::string> JsonValue::texts() const {
  std::vector<std::string> all;
  for (const JsonValue& item : items()) all.push_back(item.text());
  return all;
}

std::map<std::string, std::string> JsonValue::text_fields() const {
  std::map<std::string, std::string> all;
  for (const auto& [key, value] : fields()) all.emplace(key, value.text());
  return all;
}

std::string JsonValue::where() const {
  std::string way;
  find_way(tree_->root, at_ != nullptr ? at_ : owner_, way);
  if (at_ == nullptr && json(owner_).is_array()) way += fmt::format("[{}]", place_);
  if (at_ == nullptr && json(owner_).is_object())
    way += fmt::format("{}{}", way.empty() ? "" : ".", shown(key_));
  return way.empty() ? tree_->source.name : fmt::format("{}: {}", tree_->source.name, way);
}

std::string JsonValue::said() const {
  if (at_ == nullptr) return "missing";
  if (is_object()) return fmt::format("an object of {}", size());
  if (is_list()) return fmt::format("a list of {}", size());
  if (is_text()) return fmt::format("\"{}\"", shown(text()));
  return json(at_).dump();
}

void JsonValue::refuse(std::string_view wanted) const {
  fail("{} is {}, {} was wanted{}", where(), said(), wanted, end_of(tree_->source));
}

}  // namespace lockstep
