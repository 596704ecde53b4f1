#include "src/session/requests.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

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

void check_fields(const Json& line, const std::string& where) {
  constexpr auto kFields = std::to_array<std::string_view>(
      {"id", "prompt", "tokens", "messages", "max_new", "temperature", "top_k", "top_p", "min_p",
       "repetition_penalty", "seed", "stop", "n", "arrival"});
  for (const auto& [name, value] : line.items())
    check(std::ranges::find(kFields, name) != kFields.end(),
          "{}: a request has no \"{}\"{} (it may have {})", where, name,
          did_you_mean(name, kFields), fmt::join(kFields, ", "));
  check(line.contains("prompt") + line.contains("tokens") + line.contains("messages") == 1,
        "{}: a request has one of \"prompt\", \"tokens\" and \"messages\"", where);
}

std::vector<int32_t> tokens_from(const Json& tokens, const std::string& where) {
  check(tokens.is_array(), "{}: \"tokens\" must be a list of token ids, found {}", where,
        tokens.dump());
  std::vector<int32_t> ids;
  for (const Json& id : tokens) {
    check(id.is_number_integer() && std::in_range<int32_t>(id.get<int64_t>()),
          "{}: \"tokens\" must be a list of token ids, found {} in it", where, id.dump());
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<Message> messages_from(const Json& list, const std::string& where) {
  check(list.is_array() && !list.empty(),
        "{}: \"messages\" must be a list of {{\"role\", \"content\"}}, found {}", where,
        list.dump());
  std::vector<Message> messages;
  for (const Json& m : list) {
    check(m.is_object() && m.size() == 2 && m.contains("role") && m.contains("content") &&
              m["role"].is_string() && m["content"].is_string(),
          "{}: a message must be {{\"role\": TEXT, \"content\": TEXT}}, found {}", where, m.dump());
    messages.push_back({m["role"], m["content"]});
    constexpr auto kRoles = std::to_array<std::string_view>({"system", "user", "assistant"});
    check(std::ranges::find(kRoles, messages.back().role) != kRoles.end(),
          "{}: a message is of the system, the user or the assistant, found {}", where,
          m["role"].dump());
  }
  return messages;
}

void read_whole(const Json& line, const char* name, const std::string& where, int64_t least,
                auto& value) {
  if (!line.contains(name)) return;
  const Json& number = line[name];
  // A number of more than 63 bits is unsigned, and would come out negative.
  check(number.is_number_integer() && number.get<int64_t>() >= least &&
            std::in_range<std::remove_reference_t<decltype(value)>>(number.get<int64_t>()),
        "{}: \"{}\" must be a whole number of at least {}, found {}", where, name, least,
        number.dump());
  value = number.get<std::remove_reference_t<decltype(value)>>();
}

void read_sampling(const Json& line, const std::string& where, Sampling& sampling) {
  const auto number = [&](const char* name, double& value) {
    if (!line.contains(name)) return;
    check(line[name].is_number(), "{}: \"{}\" must be a number, found {}", where, name,
          line[name].dump());
    value = line[name];
  };
  number("temperature", sampling.temperature);
  number("top_p", sampling.top_p);
  number("min_p", sampling.min_p);
  number("repetition_penalty", sampling.repetition_penalty);
  read_whole(line, "top_k", where, 0, sampling.top_k);
  read_whole(line, "seed", where, 0, sampling.seed);
  check_sampling(sampling, where + ": a request");
}

void read_stop(const Json& stop, const std::string& where, std::vector<std::string>& texts) {
  const Json list = stop.is_array() ? stop : Json::array({stop});
  texts.clear();
  for (const Json& text : list) {
    check(text.is_string() && text != "",
          "{}: \"stop\" must be a text or a list of texts, none empty, found {}", where,
          stop.dump());
    texts.push_back(text);
  }
}

void read_request(const Json& line, const std::string& where, const ModelOptions& options,
                  const Tokenizer* tokenizer, Request& request) {
  check(line.is_object(), "{}: a request must be a JSON object, found {}", where, line.dump());
  check_fields(line, where);
  if (line.contains("prompt")) {
    check(line["prompt"].is_string(), "{}: \"prompt\" must be a text, found {}", where,
          line["prompt"].dump());
    put_text(request, line["prompt"], options, tokenizer);
  } else if (line.contains("messages")) {
    const std::vector<Message> messages = messages_from(line["messages"], where);
    put_chat(request, messages, options, needed(tokenizer, options.model));
  } else {
    request.prompt = tokens_from(line["tokens"], where);
  }
  if (line.contains("id"))
    request.name = line["id"].is_string() ? line["id"].get<std::string>() : line["id"].dump();
  if (line.contains("stop")) read_stop(line["stop"], where, request.stop);
  read_whole(line, "max_new", where, 1, request.max_new);
  read_whole(line, "n", where, 1, request.samples);
  read_whole(line, "arrival", where, 0, request.arrival);
  read_sampling(line, where, request.sampling);
}

std::vector<Request> read_file(const ModelOptions& options, const Tokenizer* tokenizer,
                               const Request& pattern) {
  std::ifstream file(options.requests);
  check(file.good() && !std::filesystem::is_directory(options.requests),
        "--requests {} cannot be read: give a file with a JSON object a line", options.requests);
  return requests_in(file, options, pattern, tokenizer);
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

std::vector<Request> requests_in(std::istream& lines, const ModelOptions& options,
                                 const Request& pattern, const Tokenizer* tokenizer) {
  std::vector<Request> requests;
  std::string text;
  int number = 1;
  for (; std::getline(lines, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}, line {}", options.requests, number);
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    check(!line.is_discarded(), "{}: this is no JSON: {:.60}", where, text);
    read_request(line, where, options, tokenizer, requests.emplace_back(pattern));
  }
  // A stream whose reading failed ends as one that is at its end, but for this.
  check(!lines.bad(),
        "{}, line {}: reading failed here, before the end: the {} requests above are not all, so "
        "none is run; give a file that can be read to its end",
        options.requests, number, requests.size());
  return requests;
}

std::vector<Request> requests_from(const ModelOptions& options, const ModelConfig& config,
                                   const Tokenizer* tokenizer) {
  const Request pattern = request_pattern(options, config);
  std::vector<Request> requests;
  for (const std::string& text : options.prompts)
    put_text(requests.emplace_back(pattern), text, options, tokenizer);
  for (const std::string& text : options.tokens)
    requests.emplace_back(pattern).prompt = ids_from(text, "--tokens");
  if (!options.requests.empty())
    std::ranges::move(read_file(options, tokenizer, pattern), std::back_inserter(requests));
  check(!requests.empty(),
        "there is nothing to run: give --prompt TEXT, --tokens 1,2,3 or --requests FILE.jsonl with "
        "at least one request");
  return requests;
}

}  // namespace lockstep
