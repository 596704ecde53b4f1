// A file of requests has a JSON object a line. Each field is checked before anything is served, and
// a field that nobody reads is an Error: a misspelt one would change what is served without a word.
#include "src/session/requests.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "kernels/base/printable.h"
#include "kernels/files/json.h"
#include "kernels/files/text.h"
#include "src/session/forced.h"

namespace lockstep {
namespace {

// Bytes of a request, whose text may fill the context of a model, and of a file of requests.
constexpr size_t kMostLine = size_t{1} << 26, kMostText = size_t{1} << 32;

const Tokenizer& needed(const Tokenizer* tokenizer, const std::string& model) {
  check(tokenizer != nullptr,
        "a prompt of text needs {}/tokenizer.json, which is not there: give --tokens 1,2,3 instead",
        model);
  return *tokenizer;
}

void put_text(Request& request, const std::string& text, const ModelOptions& options,
              const Tokenizer* tokenizer) {
  if (options.chat)
    put_chat(request, {{"user", text}}, options, needed(tokenizer, options.model));
  else
    request.prompt = needed(tokenizer, options.model).encode(text);
}

void check_fields(const JsonValue& line) {
  constexpr auto kFields = std::to_array<std::string_view>(
      {"id", "prompt", "tokens", "messages", "max_new", "temperature", "top_k", "top_p", "min_p",
       "repetition_penalty", "seed", "stop", "n", "arrival", "force"});
  for (const auto& [name, value] : line.fields())
    if (std::ranges::find(kFields, name) == kFields.end())
      fail("{}: a request has no \"{}\"{} (it may have {})", line.where(), shown(name),
           did_you_mean(shown(name), kFields), fmt::join(kFields, ", "));
  const auto given = [&](const char* name) { return line[name].is_missing() ? 0 : 1; };
  check(given("prompt") + given("tokens") + given("messages") == 1,
        "{}: a request has one of \"prompt\", \"tokens\" and \"messages\"", line.where());
}

std::vector<Message> messages_from(const JsonValue& list) {
  constexpr auto kRoles = std::to_array<std::string_view>({"system", "user", "assistant"});
  if (!list.is_list() || list.size() == 0) list.refuse("a list of messages");
  std::vector<Message> messages;
  for (const JsonValue& m : list.items()) {
    if (!m.is_object() || m.size() != 2 || !m["role"].is_text() || !m["content"].is_text())
      m.refuse("{\"role\": TEXT, \"content\": TEXT}");
    messages.push_back({m["role"].text(), m["content"].text()});
    if (std::ranges::find(kRoles, messages.back().role) == kRoles.end())
      m["role"].refuse("system, user or assistant");
  }
  return messages;
}

void read_whole(const JsonValue& line, const char* name, int64_t least, auto& value) {
  using Whole = std::remove_reference_t<decltype(value)>;
  constexpr auto kMost =
      static_cast<Whole>(std::min<uint64_t>(std::numeric_limits<Whole>::max(), INT64_MAX));
  if (!line[name].is_missing()) value = line[name].whole<Whole>(static_cast<Whole>(least), kMost);
}

void read_sampling(const JsonValue& line, Sampling& sampling) {
  const auto number = [&](const char* name, double& value) {
    if (!line[name].is_missing()) value = line[name].number();
  };
  number("temperature", sampling.temperature);
  number("top_p", sampling.top_p);
  number("min_p", sampling.min_p);
  number("repetition_penalty", sampling.repetition_penalty);
  read_whole(line, "top_k", 0, sampling.top_k);
  read_whole(line, "seed", 0, sampling.seed);
  sampling.check_ranges(line.where() + ": a request");
}

void read_stop(const JsonValue& stop, std::vector<std::string>& texts) {
  texts = stop.is_list() ? stop.texts() : std::vector{stop.text()};
  if (std::ranges::count(texts, "") > 0) stop.refuse("a text, or a list of texts, none empty,");
}

void read_force(const JsonValue& force, Request& request) {
  request.forced = force.wholes<int32_t>();
  if (request.forced.empty())
    force.refuse("a list of at least one token id; leave it out to let the engine choose: that");
}

// The engine refuses such tokens too, and cannot say who named them.
void check_vocabulary(const std::vector<int32_t>& tokens, const std::string& named_by,
                      const ModelConfig& config) {
  for (const int32_t token : tokens)
    check(token >= 0 && token < config.vocab,
          "{}: token {} is none of the model's vocabulary, which is 0..{}: use the tokenizer of "
          "this model",
          named_by, token, config.vocab - 1);
}

// Fields of the line override what the command line says of all requests.
void read_request(const JsonValue& line, const ModelOptions& options, const ModelConfig& config,
                  const Tokenizer* tokenizer, Request& request) {
  check_fields(line);
  const JsonValue prompt = line["prompt"], messages = line["messages"], id = line["id"];
  if (!prompt.is_missing()) {
    if (prompt.text().empty()) prompt.refuse("a text of at least one token");
    put_text(request, prompt.text(), options, tokenizer);
  } else if (!messages.is_missing()) {
    const std::vector<Message> chat = messages_from(messages);  // what is wrong with it comes first
    put_chat(request, chat, options, needed(tokenizer, options.model));
  } else {
    request.prompt = line["tokens"].wholes<int32_t>(/*least=*/0);
    if (request.prompt.empty()) line["tokens"].refuse("a list of at least one token id");
  }
  if (id.is_list() || id.is_object()) id.refuse("a text or a number");
  if (!id.is_missing()) request.name = id.is_text() ? id.text() : id.said();
  if (!line["stop"].is_missing()) read_stop(line["stop"], request.stop);
  if (!line["force"].is_missing()) read_force(line["force"], request);
  read_whole(line, "max_new", 1, request.max_new);
  read_whole(line, "n", 1, request.samples);
  read_whole(line, "arrival", 0, request.arrival);
  read_sampling(line, request.sampling);
  for (const auto* tokens : {&request.prompt, &request.forced})
    check_vocabulary(*tokens, line.where(), config);
}

}  // namespace

std::vector<int32_t> ids_from(const std::string& text, const std::string& option) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int32_t id = 0;
    const auto [after, error] = std::from_chars(at, end, id);
    check(error == std::errc() && (after == end || *after == ','),
          "{} wants token ids as in 1,2,3, found \"{}\"", option, text);
    ids.push_back(id);
    if (after == end) return ids;
    at = after + 1;
  }
}

Request request_pattern(const ModelOptions& options, const ModelConfig& config) {
  Request pattern;
  pattern.max_new = options.max_new;
  if (!options.ignore_eos) pattern.eos = config.eos;
  if (!options.force.empty()) pattern.forced = ids_from(options.force, "--force");
  check(std::ranges::count(options.stop, "") == 0, "--stop wants a text, found an empty one");
  pattern.stop = options.stop;
  pattern.sampling = options.sampling;
  pattern.samples = options.samples;
  return pattern;
}

void put_chat(Request& request, const std::vector<Message>& messages, const ModelOptions& options,
              const Tokenizer& tokenizer) {
  const int32_t end = end_of_turn(tokenizer);
  request.prompt = tokenizer.encode(chat_text(messages));
  if (!options.ignore_eos) request.eos.push_back(end);
}

std::vector<Request> requests_in(const std::string& text, const ModelOptions& options,
                                 const ModelConfig& config, const Tokenizer* tokenizer) {
  const Request pattern = request_pattern(options, config);
  std::vector<Request> requests;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const JsonDocument document(
        line, {fmt::format("{}, line {}", options.requests, number), "correct it", kMostLine});
    read_request(document.root(), options, config, tokenizer, requests.emplace_back(pattern));
  }
  check(!requests.empty(), "{}: has no request, and one a line was wanted", options.requests);
  return requests;
}

std::vector<Request> requests_from(const ModelOptions& options, const ModelConfig& config,
                                   const Tokenizer* tokenizer) {
  const Request pattern = request_pattern(options, config);
  check_vocabulary(pattern.forced, "--force", config);
  std::vector<Request> requests;
  for (const std::string& text : options.prompts) {
    put_text(requests.emplace_back(pattern), text, options, tokenizer);
    check_vocabulary(requests.back().prompt, options.model + "/tokenizer.json", config);
  }
  for (const std::string& text : options.tokens) {
    requests.emplace_back(pattern).prompt = ids_from(text, "--tokens");
    check_vocabulary(requests.back().prompt, "--tokens", config);
  }
  if (!options.requests.empty())
    std::ranges::move(
        requests_in(read_text(options.requests, kMostText), options, config, tokenizer),
        std::back_inserter(requests));
  check(!requests.empty(),
        "there is nothing to run: give --prompt TEXT, --tokens 1,2,3 or --requests FILE.jsonl with "
        "at least one request");
  if (options.force_from.empty()) return requests;
  force_from(options.force_from, requests);
  for (const Request& request : requests) {
    check_vocabulary(request.forced, "--force-from " + options.force_from, config);
    for (const std::vector<int32_t>& sample : request.forced_samples)
      check_vocabulary(sample, "--force-from " + options.force_from, config);
  }
  return requests;
}

}  // namespace lockstep
