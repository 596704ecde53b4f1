// The output of generate. Texts stream as they come, one request after another, so that two never
// mix; as JSON each is a line when it has ended.
#include "src/session/printer.h"

#include <nlohmann/json.hpp>

#include "src/report/output.h"
#include "traces/json_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::none:
      return "none";
    case Ending::length:
      return "length";
    case Ending::eos:
      return "eos";
    case Ending::stop:
      return "stop";
  }
  return "";
}

Json json_of(const Logprobs::Token& token, const Tokenizer* tokenizer) {
  Json json = {{"token", token.token}};
  if (tokenizer != nullptr) json["text"] = tokenizer->decode(std::span(&token.token, 1));
  json["logprob"] = json_number<Json>(token.logprob);
  return json;
}

Json json_of(const std::vector<Logprobs>& logprobs, const Tokenizer* tokenizer) {
  Json list = Json::array();
  for (const Logprobs& choice : logprobs) {
    Json one = json_of(choice.chosen, tokenizer);
    for (const Logprobs::Token& top : choice.top) one["top"].push_back(json_of(top, tokenizer));
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace

// Without the token that ended it, which is no text.
std::string SequenceText::take_new() {
  const int64_t prompt = std::ssize(sequence_.request.prompt);
  const int64_t made = sequence_.length() - prompt - (sequence_.ending == Ending::eos ? 1 : 0);
  std::string text;
  for (; read_ < made; ++read_) text += stream_.push(sequence_.tokens[prompt + read_]);
  return sequence_.finished ? text + stream_.finish() : text;
}

Printer::Printer(const Engine& engine, int32_t requests, const Tokenizer* tokenizer,
                 Printer::Format format)
    : engine_(engine), tokenizer_(tokenizer), format_(format), requests_(requests) {}

// Samples of one request are sequences of their own, and appear when the prompt has been read.
const Sequence* Printer::current() const {
  for (int32_t id = request_; id < engine_.requests(); ++id)
    if (const Sequence& s = engine_.sequence(id); s.root_request == request_ && s.sample == sample_)
      return &s;
  return nullptr;
}

std::string Printer::json_line(const Sequence& s) const {
  Json line = {{"request", request_}};
  if (!s.request.name.empty()) line["id"] = s.request.name;
  line["sample"] = sample_;
  if (tokenizer_ != nullptr) line["text"] = whole_;
  line["tokens"] = std::vector(s.tokens.begin() + std::ssize(s.request.prompt), s.tokens.end());
  line["ending"] = name_of(s.ending);
  if (!s.logprobs.empty()) line["logprobs"] = json_of(s.logprobs, tokenizer_);
  return line.dump() + "\n";
}

// In the order of the requests, whatever order they end in: one that is ahead waits.
void Printer::print_new() {
  while (request_ < requests_) {
    const Sequence* sequence = current();
    if (!sequence) return;
    if (!text_ && tokenizer_ != nullptr) text_.emplace(*sequence, *tokenizer_);
    const std::string text = text_ ? text_->take_new() : "";
    if (format_ == Printer::Format::json)
      whole_ += text;
    else if (!text.empty())
      print(text);
    if (!sequence->finished) return;
    print(format_ == Printer::Format::json ? json_line(*sequence) : "\n");
    text_.reset();
    whole_.clear();
    if (++sample_ == sequence->request.samples) sample_ = 0, ++request_;
  }
}

}  // namespace lockstep
