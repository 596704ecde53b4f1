#include "src/weights/tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "kernels/base/check.h"
#include "src/weights/bpe.h"
#include "src/weights/files.h"
#include "src/weights/utf8.h"
#include "src/weights/words.h"

namespace lockstep {

using nlohmann::json;

// Added tokens by their first byte, longest first.
using AddedTokens = std::array<std::vector<std::pair<std::string, int32_t>>, 256>;

struct Tokenizer::Tables {
  WordSplitter words;
  std::optional<Bpe> bpe;
  std::vector<std::optional<std::string>> bytes;  // by id; ids may have gaps
  AddedTokens added;
};

namespace {

constexpr int64_t kMaxIds = 1 << 24;

// A field of an object, null when there is none.
const json& field(const json& object, std::string_view key) {
  static const json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// The settings of tokenizer.json that change ids: the Qwen kind is read and no other.
void check_kind(const json& root, const std::string& path) {
  const auto wanted = [&](bool ok, std::string_view what) {
    check(ok,
          "\"{}\" should have {}, as the tokenizers of Qwen do, and has something else; use such a "
          "tokenizer",
          path, what);
  };
  const json& model = field(root, "model");
  wanted(field(model, "type") == "BPE", "a model of type BPE");
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                          "byte_fallback", "ignore_merges"}) {
    const json& value = field(model, key);
    wanted(value.is_null() || value == false || value == "", fmt::format("no \"{}\"", key));
  }
  wanted(field(field(root, "normalizer"), "type") == "NFC", "the normalizer NFC");
  const json& steps = field(field(root, "pre_tokenizer"), "pretokenizers");
  wanted(steps.is_array() && steps.size() == 2, "a pre-tokenizer of two steps");
  wanted(field(field(steps[0], "pattern"), "Regex") == WordSplitter::pattern() &&
             field(steps[0], "behavior") == "Isolated" && field(steps[0], "invert") != true,
         fmt::format("a split by {}", WordSplitter::pattern()));
  wanted(field(steps[1], "type") == "ByteLevel" && field(steps[1], "add_prefix_space") == false &&
             field(steps[1], "use_regex") == false,
         "a byte level without a prefix or an expression of its own");
  const json& post = field(root, "post_processor");
  wanted(post.is_null() || field(post, "type") == "ByteLevel",
         "no step that adds tokens afterwards");
  wanted(field(field(root, "decoder"), "type") == "ByteLevel", "a decoder of bytes");
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

  void read_vocabulary(const json& vocabulary);
  void read_added(const json& list, AddedTokens& by_first);
  Bpe read_merges(const json& list);
  std::vector<std::optional<std::string>> take_bytes() { return std::move(bytes_); }

 private:
  int32_t id_of(const json& id, const std::string& token) const {
    check(
        id.is_number_unsigned() && id.get<uint64_t>() < kMaxIds,
        "token \"{}\" of \"{}\" has the id {}, and ids are whole numbers below {}; fetch the file "
        "again",
        token, path_, id.dump(), kMaxIds);
    return id.get<int32_t>();
  }
  std::string raw(const std::string& token) const;
  void put(int32_t id, const std::string& bytes);
  int32_t known(const std::string& bytes) const;
  std::pair<std::string, std::string> parts_of(const json& merge) const;

  const std::string& path_;
  std::unordered_map<std::string, char> alphabet_;
  std::unordered_map<std::string, int32_t> ids_;  // by bytes, without added tokens
  std::vector<std::optional<std::string>> bytes_;
};

// The bytes that a token of the file stands for.
std::string Reader::raw(const std::string& token) const {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const std::string character = token.substr(at, utf8_front(token.substr(at, 4)).length);
    const auto found = alphabet_.find(character);
    check(found != alphabet_.end(),
          "token \"{}\" of \"{}\" has the character \"{}\", which stands for no byte; use a "
          "byte-level "
          "tokenizer",
          token, path_, character);
    bytes += found->second;
    at += character.size();
  }
  return bytes;
}

void Reader::put(int32_t id, const std::string& bytes) {
  const auto i = static_cast<size_t>(id);
  if (bytes_.size() <= i) bytes_.resize(i + 1);
  check(!bytes_[i] || bytes_[i] == bytes,
        "id {} of \"{}\" belongs to two tokens; fetch the file again", id, path_);
  bytes_[i] = bytes;
}

void Reader::read_vocabulary(const json& vocabulary) {
  check(vocabulary.is_object() && !vocabulary.empty(),
        "\"{}\" should have tokens in model.vocab and has none; fetch the file again", path_);
  for (const auto& [token, id] : vocabulary.items()) {
    const std::string bytes = raw(token);
    ids_[bytes] = id_of(id, token);
    put(ids_[bytes], bytes);
  }
}

void Reader::read_added(const json& list, AddedTokens& by_first) {
  check(list.is_null() || list.is_array(),
        "added_tokens of \"{}\" should be a list and is not; fetch the file again", path_);
  // An added token may repeat a token of the vocabulary, but only under the same id.
  for (const json& entry : list) {
    const json& content = field(entry, "content");
    check(content.is_string() && content != "",
          "an added token of \"{}\" has no content; fetch the file again", path_);
    const auto text = content.get<std::string>();
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"})
      check(field(entry, key).is_null() || field(entry, key) == false,
            "added token \"{}\" of \"{}\" asks for \"{}\", which is not supported; use the "
            "tokenizer of "
            "a Qwen checkpoint",
            text, path_, key);
    const int32_t id = id_of(field(entry, "id"), text);
    put(id, text);
    by_first[static_cast<uint8_t>(text[0])].emplace_back(text, id);
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

std::pair<std::string, std::string> Reader::parts_of(const json& merge) const {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {raw(merge[0].get<std::string>()), raw(merge[1].get<std::string>())};
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const size_t blank = text.find(' ');
  check(blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos,
        "merges of \"{}\" should be \"a b\" or [\"a\", \"b\"], and one is {}; fetch the file again",
        path_, merge.dump());
  return {raw(text.substr(0, blank)), raw(text.substr(blank + 1))};
}

Bpe Reader::read_merges(const json& list) {
  check(list.is_array(), "\"{}\" should have a list in model.merges; fetch the file again", path_);
  Bpe bpe(ids_);
  for (const json& merge : list) {
    const auto [left, right] = parts_of(merge);
    bpe.add_merge(known(left), known(right), known(left + right));
  }
  return bpe;
}

}  // namespace

Tokenizer Tokenizer::open(const std::string& dir) {
  const std::string path = dir + "/tokenizer.json";
  const json root = json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  check(root.is_object(), "\"{}\" is not a JSON object; fetch the file again", path);
  check_kind(root, path);
  const auto tables = std::make_shared<Tables>();
  Reader reader(path);
  reader.read_vocabulary(field(field(root, "model"), "vocab"));
  tables->bpe = reader.read_merges(field(field(root, "model"), "merges"));
  reader.read_added(field(root, "added_tokens"), tables->added);
  tables->bytes = reader.take_bytes();
  Tokenizer tokenizer;
  tokenizer.tables_ = tables;
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  for (size_t at = 0; at < text.size();) {
    const Utf8Front front = utf8_front(text.substr(at));
    check(front.kind == Utf8Kind::whole,
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
    const auto& tokens = tables_->added[static_cast<uint8_t>(text[at])];
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
  if (id >= size() || !tables_->bytes[static_cast<size_t>(id)]) return kReplacement;
  return *tables_->bytes[static_cast<size_t>(id)];
}

int64_t Tokenizer::size() const { return std::ssize(tables_->bytes); }

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
