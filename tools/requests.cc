#include "tools/requests.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/check.h"
#include "kernels/nearest.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

std::vector<int32_t> encode(const std::string& text, const Tokenizer* tokenizer,
                            const std::string& model) {
  check(tokenizer != nullptr,
        "a prompt of text needs {}/tokenizer.json, which is not there: give --tokens 1,2,3 instead",
        model);
  return tokenizer->encode(text);
}

void check_fields(const Json& line, const std::string& where) {
  constexpr auto kFields = std::to_array<std::string_view>({"id", "prompt", "tokens", "max_new"});
  for (const auto& [name, value] : line.items())
    check(std::ranges::find(kFields, name) != kFields.end(),
          "{}: a request has no \"{}\"; did you mean \"{}\"?", where, name, nearest(name, kFields));
  check(line.contains("prompt") != line.contains("tokens"),
        "{}: a request has either \"prompt\" or \"tokens\"", where);
}

void read_tokens(const Json& tokens, const std::string& where, Request& request) {
  check(tokens.is_array(), "{}: \"tokens\" must be a list of token ids, found {}", where,
        tokens.dump());
  for (const Json& id : tokens) {
    check(id.is_number_integer() && std::in_range<int32_t>(id.get<int64_t>()),
          "{}: \"tokens\" must be a list of token ids, found {} in it", where, id.dump());
    request.prompt.push_back(id.get<int32_t>());
  }
}

void read_request(const Json& line, const std::string& where, const ModelOptions& options,
                  const Tokenizer* tokenizer, Request& request) {
  check(line.is_object(), "{}: a request must be a JSON object, found {}", where, line.dump());
  check_fields(line, where);
  if (line.contains("prompt")) {
    check(line["prompt"].is_string(), "{}: \"prompt\" must be a text, found {}", where,
          line["prompt"].dump());
    request.prompt = encode(line["prompt"].get<std::string>(), tokenizer, options.model);
  } else {
    read_tokens(line["tokens"], where, request);
  }
  if (line.contains("id"))
    request.name = line["id"].is_string() ? line["id"].get<std::string>() : line["id"].dump();
  if (line.contains("max_new")) {
    const Json& max_new = line["max_new"];
    check(max_new.is_number_integer() && max_new.get<int64_t>() >= 1,
          "{}: \"max_new\" must be a whole number of at least 1, found {}", where, max_new.dump());
    request.max_new = max_new.get<int64_t>();
  }
}

// Requests of a JSONL file, each starting as a copy of `pattern`.
void read_file(const ModelOptions& options, const Tokenizer* tokenizer, const Request& pattern,
               std::vector<Request>& out) {
  std::ifstream file(options.requests);
  check(file.good() && !std::filesystem::is_directory(options.requests),
        "--requests {} cannot be read: give a file with a JSON object a line", options.requests);
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}, line {}", options.requests, number);
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    check(!line.is_discarded(), "{}: this is no JSON: {:.60}", where, text);
    read_request(line, where, options, tokenizer, out.emplace_back(pattern));
  }
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

std::vector<Request> requests_from(const ModelOptions& options, const ModelConfig& config,
                                   const Tokenizer* tokenizer) {
  Request pattern;
  pattern.max_new = options.max_new;
  pattern.eos = config.eos;
  if (!options.force.empty()) pattern.forced = ids_from(options.force, "--force");

  std::vector<Request> requests;
  for (const std::string& text : options.prompts)
    requests.emplace_back(pattern).prompt = encode(text, tokenizer, options.model);
  for (const std::string& text : options.tokens)
    requests.emplace_back(pattern).prompt = ids_from(text, "--tokens");
  if (!options.requests.empty()) read_file(options, tokenizer, pattern, requests);
  check(!requests.empty(),
        "there is nothing to run: give --prompt TEXT, --tokens 1,2,3 or --requests FILE.jsonl with "
        "at least one request");
  return requests;
}

}  // namespace lockstep
