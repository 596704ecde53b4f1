// Text becomes tokens in four steps: added tokens are sought in the text as it is; what lies
// between them is brought into NFC; words.h cuts that into words; bpe.h merges the bytes of each
// word.
#include "src/weights/tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "kernels/base/utf8.h"
#include "kernels/files/json.h"
#include "src/weights/bpe.h"
#include "src/weights/words.h"

namespace lockstep {

// Added tokens by their first byte, longest first.
using AddedTokens = std::array<std::vector<std::pair<std::string, int32_t>>, 256>;

// The bytes of each token by its id. A map, for ids may have gaps, and one token of a large id must
// take no memory for all below it.
using TokenBytes = std::unordered_map<int32_t, std::string>;

struct Tokenizer::Tables {
  WordSplitter words;
  std::optional<Bpe> bpe;
  TokenBytes bytes;
  AddedTokens added;
  int64_t size = 0;  // largest id + 1
};

namespace {

constexpr int32_t kMaxIds = 1 << 24;

constexpr size_t kMostBytes = 64 << 20;  // of a tokenizer.json; those of 250,000 tokens have 33 MB
constexpr char kTokenizerRemedy[] =
    "use the tokenizer.json of a Qwen checkpoint, or fetch it again";

// Whether a setting is absent or says nothing.
bool is_off(const JsonValue& value) { return !value || value.is(false) || value.is(""); }

// The settings of tokenizer.json that change ids: the Qwen kind is read and no other.
void check_kind(const JsonValue& root) {
  const auto wanted = [](bool ok, const JsonValue& value, const std::string& what) {
    if (!ok) value.refuse(what + ", as the tokenizers of Qwen have it,");
  };
  const JsonValue model = root["model"];
  wanted(model["type"].is("BPE"), model["type"], "the type BPE");
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                          "byte_fallback", "ignore_merges"})
    wanted(is_off(model[key]), model[key], "nothing");
  const JsonValue normalizer = root["normalizer"]["type"];
  wanted(normalizer.is("NFC"), normalizer, "the normalizer NFC");
  const JsonValue steps = root["pre_tokenizer"]["pretokenizers"];
  wanted(steps.size() == 2, steps, "a pre-tokenizer of two steps");
  const JsonValue expression = steps[0]["pattern"]["Regex"];
  wanted(expression.is(WordSplitter::pattern()) && steps[0]["behavior"].is("Isolated") &&
             !steps[0]["invert"].is(true),
         steps[0], fmt::format("a split by {}", WordSplitter::pattern()));
  wanted(steps[1]["type"].is("ByteLevel") && steps[1]["add_prefix_space"].is(false) &&
             steps[1]["use_regex"].is(false),
         steps[1], "a byte level without a prefix or an expression of its own");
  const JsonValue post = root["post_processor"];
  wanted(!post || post["type"].is("ByteLevel"), post, "no step that adds tokens afterwards");
  const JsonValue decoder = root["decoder"]["type"];
  wanted(decoder.is("ByteLevel"), decoder, "a decoder of bytes");
}

// Tokens are written in printable characters, one for each byte: a printable Latin-1 byte is
// itself, and the others are U+0100 onwards, in order (the table of GPT-2).
std::unordered_map<std::string, char> byte_alphabet() {
  std::unordered_map<std::string, char> alphabet;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const uint32_t point = printable ? byte : next++;
    std::string character;
    if (point >= 0x80) character += static_cast<char>(0xC0 | (point >> 6));
    character += static_cast<char>(point < 0x80 ? point : 0x80 | (point & 0x3F));
    alphabet[character] = static_cast<char>(byte);
  }
  return alphabet;
}

// Reads the tables of one tokenizer.json.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), alphabet_(byte_alphabet()) {}

  void read_vocabulary(const JsonValue& vocabulary);
  void read_added(const JsonValue& list, AddedTokens& by_first);
  Bpe read_merges(const JsonValue& list);
  TokenBytes take_bytes() { return std::move(bytes_); }

 private:
  std::string raw(std::string_view token) const;
  void put(int32_t id, const std::string& bytes);
  int32_t known(const std::string& bytes) const;
  std::pair<std::string, std::string> parts_of(const JsonValue& merge) const;

  const std::string& path_;
  std::unordered_map<std::string, char> alphabet_;
  std::unordered_map<std::string, int32_t> ids_;  // by bytes, without added tokens
  TokenBytes bytes_;
};

// The bytes that a token of the file stands for.
std::string Reader::raw(std::string_view token) const {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const std::string character(token.substr(at, utf8_front(token.substr(at, 4)).length));
    const auto found = alphabet_.find(character);
    if (found == alphabet_.end())  // no check, which would make its words for each character
      fail(
          "token \"{}\" of \"{}\" has the character \"{}\", which stands for no byte; use a "
          "byte-level tokenizer",
          shown(token), path_, shown(character));
    bytes += found->second;
    at += character.size();
  }
  return bytes;
}

// Gives an id its bytes; the same id twice must have the same ones.
void Reader::put(int32_t id, const std::string& bytes) {
  const auto [there, is_new] = bytes_.emplace(id, bytes);
  check(is_new || there->second == bytes,
        "id {} of \"{}\" belongs to two tokens; fetch the file again", id, path_);
}

// The tokens that merges make, by their bytes.
void Reader::read_vocabulary(const JsonValue& vocabulary) {
  if (vocabulary.size() == 0) vocabulary.refuse("tokens with their ids");
  for (const auto& [token, id] : vocabulary.fields()) {
    const std::string bytes = raw(token);
    ids_[bytes] = id.whole<int32_t>(0, kMaxIds - 1);
    put(ids_[bytes], bytes);
  }
}

// Added tokens ("<|im_end|>") are found in the text before anything is normalised; at one place the
// longest wins.
void Reader::read_added(const JsonValue& list, AddedTokens& by_first) {
  if (!list) return;
  // An added token may repeat a token of the vocabulary, but only under the same id.
  for (const JsonValue& entry : list.items()) {
    const std::string& text = entry["content"].text();
    if (text.empty()) entry["content"].refuse("a text");
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"})
      if (entry[key] && !entry[key].is(false))
        entry[key].refuse("false, which alone is supported,");
    const auto id = entry["id"].whole<int32_t>(0, kMaxIds - 1);
    put(id, text);
    by_first[byte_of(text[0])].emplace_back(text, id);
  }
  for (auto& tokens : by_first)
    std::stable_sort(tokens.begin(), tokens.end(),
                     [](auto& a, auto& b) { return a.first.size() > b.first.size(); });
}

int32_t Reader::known(const std::string& bytes) const {
  const auto found = ids_.find(bytes);
  check(found != ids_.end(),
        "\"{}\" has a merge of or into a token that its vocabulary lacks; fetch the file again",
        path_);
  return found->second;
}

// The two halves of a merge: "a b" in older files, ["a", "b"] in newer ones.
std::pair<std::string, std::string> Reader::parts_of(const JsonValue& merge) const {
  if (merge.is_list() && merge.size() == 2) return {raw(merge[0].text()), raw(merge[1].text())};
  const std::string_view text = merge.is_text() ? merge.text() : std::string_view();
  const size_t blank = text.find(' ');
  if (blank == text.npos || text.find(' ', blank + 1) != text.npos)
    merge.refuse("\"a b\" or [\"a\", \"b\"]");
  return {raw(text.substr(0, blank)), raw(text.substr(blank + 1))};
}

Bpe Reader::read_merges(const JsonValue& list) {
  Bpe bpe(ids_, path_);
  for (const JsonValue& merge : list.items()) {
    const auto [left, right] = parts_of(merge);
    bpe.add_merge(known(left), known(right), known(left + right));
  }
  return bpe;
}

}  // namespace

Tokenizer Tokenizer::open(const std::string& dir) {
  const std::string path = dir + "/tokenizer.json";
  const JsonDocument document = JsonDocument::read(path, kTokenizerRemedy, kMostBytes);
  const JsonValue root = document.root();
  check_kind(root);
  const auto tables = std::make_shared<Tables>();
  Reader reader(path);
  reader.read_vocabulary(root["model"]["vocab"]);
  tables->bpe = reader.read_merges(root["model"]["merges"]);
  reader.read_added(root["added_tokens"], tables->added);
  tables->bytes = reader.take_bytes();
  for (const auto& [id, bytes] : tables->bytes)
    tables->size = std::max(tables->size, int64_t{id} + 1);
  Tokenizer tokenizer;
  tokenizer.tables_ = tables;
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  for (size_t at = 0; at < text.size();) {
    const Utf8Front front = utf8_front(text.substr(at));
    check(front.kind == Utf8Front::Kind::whole,
          "a text to be encoded is not UTF-8 at byte {} of {}; convert it", at, text.size());
    at += front.length;
  }
  std::vector<int32_t> ids;
  const auto encode_piece = [&](std::string_view piece) {
    tables_->words.split(normalised(piece),
                         [&](std::string_view word) { tables_->bpe->encode(word, ids); });
  };
  // Added tokens are sought in the text as it is, before anything is normalised.
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const auto& tokens = tables_->added[byte_of(text[at])];
    const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const auto& token) {
      return text.substr(at).starts_with(token.first);
    });
    if (found == tokens.end()) {
      ++at;
      continue;
    }
    encode_piece(text.substr(begin, at - begin));
    ids.push_back(found->second);
    at += found->first.size();
    begin = at;
  }
  encode_piece(text.substr(begin));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  StreamDecoder decoder(*this);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  check(id >= 0, "an id of a token was wanted, found {}: ids begin with 0", id);
  const auto found = tables_->bytes.find(id);
  return found == tables_->bytes.end() ? kReplacement : std::string_view(found->second);
}

int64_t Tokenizer::size() const { return tables_->size; }

std::string StreamDecoder::push(int32_t id) {
  pending_ += tokenizer_.bytes_of(id);
  std::string text;
  take_characters(pending_, text);
  return text;
}

std::string StreamDecoder::finish() {
  // The bytes that the end cut off are the beginning of one character.
  std::string text(pending_.empty() ? "" : kReplacement);
  pending_.clear();
  return text;
}

}  // namespace lockstep
