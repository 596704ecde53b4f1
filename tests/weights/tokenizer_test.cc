#include "src/weights/tokenizer.h"

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/helpers.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Text, ids and text again, by the original tokenizer.
json cases() { return json::parse(text_of(data_path("golden/tokenizer-cases.json"))); }

json tokenizer_json() { return json::parse(text_of(data_path("bard-qwen3/tokenizer.json"))); }

Tokenizer open(const json& file) {
  const TempFolder folder;
  folder.write("tokenizer.json", file.dump());
  return Tokenizer::open(folder.path());
}

void expect_cases(const Tokenizer& tokenizer) {
  for (const json& one : cases()) {
    const auto text = one["text"].get<std::string>();
    const auto ids = one["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), one["decoded"].get<std::string>()) << text;
  }
}

TEST(Tokenizer, encodes_and_decodes_every_case) {
  ASSERT_GE(cases().size(), 20u);
  for (const char* model : {"bard-qwen3", "bard-qwen2.5"}) {
    const Tokenizer tokenizer = Tokenizer::open(data_path(model));
    EXPECT_EQ(tokenizer.size(), 4096);
    expect_cases(tokenizer);
  }
}

TEST(Tokenizer, reads_both_spellings_of_merges) {
  json file = tokenizer_json();
  for (json& merge : file["model"]["merges"])
    if (merge.is_array())
      merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    else
      FAIL() << "the other spelling was expected";
  expect_cases(open(file));
}

TEST(Tokenizer, streams_what_it_decodes) {
  const Tokenizer tokenizer = Tokenizer::open(data_path("bard-qwen3"));
  for (const json& one : cases()) {
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (const int32_t id : one["ids"]) text += decoder.push(id);
    text += decoder.finish();
    EXPECT_EQ(text, one["decoded"].get<std::string>());
  }
}

// The ids of single bytes, so that every character is split over several tokens.
std::vector<int32_t> byte_ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  for (const char byte : text)
    for (int32_t id = 0; id < tokenizer.size(); ++id)
      if (tokenizer.bytes_of(id) == std::string_view(&byte, 1)) ids.push_back(id);
  return ids;
}

TEST(Tokenizer, streams_byte_by_byte_and_never_half_a_character) {
  const Tokenizer tokenizer = Tokenizer::open(data_path("bard-qwen3"));
  for (const json& one : cases()) {
    const auto text = one["text"].get<std::string>();
    const std::vector<int32_t> ids = byte_ids(tokenizer, text);
    ASSERT_EQ(ids.size(), text.size());
    StreamDecoder decoder(tokenizer);
    std::string seen;
    for (const int32_t id : ids) {
      seen += decoder.push(id);
      EXPECT_EQ(text.compare(0, seen.size(), seen), 0);
      const bool at_character = seen.size() == text.size() || (text[seen.size()] & 0xC0) != 0x80;
      EXPECT_TRUE(at_character) << seen;
    }
    EXPECT_EQ(seen, text);
    EXPECT_EQ(decoder.finish(), "");
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST(Tokenizer, an_emoji_comes_out_with_its_last_byte) {
  const Tokenizer tokenizer = Tokenizer::open(data_path("bard-qwen3"));
  const std::vector<int32_t> ids = byte_ids(tokenizer, "\xF0\x9F\x99\x82!");
  StreamDecoder decoder(tokenizer);
  std::vector<std::string> parts;
  for (const int32_t id : ids) parts.push_back(decoder.push(id));
  EXPECT_EQ(parts, (std::vector<std::string>{"", "", "", "\xF0\x9F\x99\x82", "!"}));
}

TEST(Tokenizer, broken_characters_are_replaced) {
  const Tokenizer tokenizer = Tokenizer::open(data_path("bard-qwen3"));
  EXPECT_EQ(tokenizer.decode(byte_ids(tokenizer, "a\xF0\x9F")), "a\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer.decode(byte_ids(tokenizer, "\xF0\x9Fz\x80")), "\xEF\xBF\xBDz\xEF\xBF\xBD");
}

TEST(Tokenizer, added_tokens_go_first_and_the_longest_wins) {
  json file = tokenizer_json();
  const auto add = [&](int32_t id, const std::string& content) {
    file["added_tokens"].push_back({{"id", id}, {"content", content}, {"normalized", false}});
  };
  add(4096, "<x");
  add(4097, "<x>>");
  add(4100, "e\xCC\x81");  // not in normal form: found in the text as it is
  const Tokenizer tokenizer = open(file);
  EXPECT_EQ(tokenizer.size(), 4101);
  EXPECT_EQ(tokenizer.encode("<x>><x>e\xCC\x81"),
            (std::vector<int32_t>{4097, 4096, tokenizer.encode(">")[0], 4100}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{4097, 4096}), "<x>><x");
}

TEST(Tokenizer, a_word_of_a_megabyte_takes_no_quadratic_time) {
  const Tokenizer tokenizer = Tokenizer::open(data_path("bard-qwen3"));
  std::string text;
  while (text.size() < 1 << 20) text += "thequickbrownfox";
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<int32_t> ids = tokenizer.encode(text);
  EXPECT_LE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(Tokenizer, refuses_text_and_ids_that_are_none) {
  const Tokenizer tokenizer = Tokenizer::open(data_path("bard-qwen3"));
  expect_trouble("not UTF-8 at byte 2 of 3", [&] { tokenizer.encode("ab\xFF"); });
  expect_trouble("not UTF-8 at byte 0 of 2", [&] { tokenizer.encode("\xE6\x9D"); });
  expect_trouble("found -1", [&] { tokenizer.decode(std::vector<int32_t>{1, -1}); });
}

// A model has rows for more ids than its tokenizer: Qwen's have hundreds.
TEST(Tokenizer, shows_that_an_id_has_no_text) {
  json file = tokenizer_json();
  file["added_tokens"].erase(1);  // 4094
  const Tokenizer tokenizer = open(file);
  const std::string a = tokenizer.decode(std::vector<int32_t>{1});
  for (const int32_t id : {4094, 4096, 151935})
    EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, id, 1}), a + "\uFFFD" + a) << id;
}

TEST(Tokenizer, refuses_other_kinds_and_damaged_files) {
  using Change = std::function<void(json&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"model.type is \"Unigram\", the type BPE", [](json& f) { f["model"]["type"] = "Unigram"; }},
      {"model is missing", [](json& f) { f.erase("model"); }},
      {"model.dropout is 0.1, nothing", [](json& f) { f["model"]["dropout"] = 0.1; }},
      {"byte_fallback is true, nothing", [](json& f) { f["model"]["byte_fallback"] = true; }},
      {"ignore_merges is true, nothing", [](json& f) { f["model"]["ignore_merges"] = true; }},
      {"normalizer is null, an object", [](json& f) { f["normalizer"] = nullptr; }},
      {"normalizer NFC", [](json& f) { f["normalizer"]["type"] = "NFKC"; }},
      {"pretokenizers is missing",
       [](json& f) {
         f["pre_tokenizer"] = {{"type", "ByteLevel"}};
       }},
      {"a split by",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "."; }},
      {"pretokenizers[0] is 1, an object",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"][0] = 1; }},
      {"byte level",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }},
      {"adds tokens", [](json& f) { f["post_processor"]["type"] = "TemplateProcessing"; }},
      {"decoder is missing", [](json& f) { f.erase("decoder"); }},
      {"tokens with their ids", [](json& f) { f["model"]["vocab"] = json::object(); }},
      {"model.vocab.! is -1", [](json& f) { f["model"]["vocab"]["!"] = -1; }},
      {"model.vocab.! is 1.5", [](json& f) { f["model"]["vocab"]["!"] = 1.5; }},
      {"belongs to two tokens", [](json& f) { f["model"]["vocab"]["!"] = 1; }},
      {"no token for the byte 33", [](json& f) { f["model"]["vocab"].erase("!"); }},
      {"stands for no byte", [](json& f) { f["model"]["vocab"]["東"] = 9000; }},
      {"model.merges is \"a b\", a list", [](json& f) { f["model"]["merges"] = "a b"; }},
      {"vocabulary lacks",
       [](json& f) {
         f["model"]["merges"].push_back({"zq", "zq"});
       }},
      {"is 7, \"a b\" or", [](json& f) { f["model"]["merges"].push_back(7); }},
      {"is \"ab\", \"a b\" or", [](json& f) { f["model"]["merges"].push_back("ab"); }},
      {"is \"a b c\", \"a b\" or", [](json& f) { f["model"]["merges"].push_back("a b c"); }},
      {"added_tokens[0].content is \"\"", [](json& f) { f["added_tokens"][0]["content"] = ""; }},
      {"added_tokens[0].lstrip is true, false",
       [](json& f) { f["added_tokens"][0]["lstrip"] = true; }},
      {"added_tokens is \"x\", a list", [](json& f) { f["added_tokens"] = "x"; }},
      {"belongs to two tokens", [](json& f) { f["added_tokens"][0]["id"] = 5; }},
  };
  for (const auto& [phrase, change] : changes) {
    json file = tokenizer_json();
    change(file);
    expect_trouble(phrase, [&] { open(file); });
  }
  const TempFolder folder;
  expect_trouble("tokenizer.json\" cannot be opened", [&] { Tokenizer::open(folder.path()); });
  folder.write("tokenizer.json", text_of(data_path("bard-qwen3/tokenizer.json")).substr(0, 1000));
  expect_trouble("is no JSON", [&] { Tokenizer::open(folder.path()); });
}

}  // namespace
}  // namespace lockstep
