#include "src/report/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/files/json.h"
#include "tests/fixtures.h"

namespace lockstep {
namespace {

const Table kTable{
    {"name", "count", "size"},
    {{std::string("a, \"b\""), int64_t{7}, 0.1}, {std::string("c"), int64_t{12}, NAN}}};

TEST(TextOf, TableAlignsNumbersRightAndShortensThem) {
  EXPECT_EQ(text_of({{"n", "x"}, {{int64_t{5}, 1.0 / 3}, {int64_t{100}, -2.0}}}, "table"),
            "  n       x\n"
            "  5  0.3333\n"
            "100      -2\n");
}

TEST(TextOf, CsvQuotesWhatItMust) {
  EXPECT_EQ(text_of(kTable, "csv"), "name,count,size\n\"a, \"\"b\"\"\",7,0.1\nc,12,NaN\n");
}

TEST(TextOf, JsonKeepsNanAsText) {
  const auto json = nlohmann::json::parse(text_of(kTable, "json"));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["name"], "a, \"b\"");
  EXPECT_EQ(json[0]["size"], 0.1);
  EXPECT_EQ(json[1]["size"], "NaN");
}

TEST(TextOf, ProgramsReadEveryNumberAsItWas) {
  Table table{{"x"}, {}};
  for (const double x : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL, 0.1, -0.0, 5e-324})
    table.rows.push_back({x});
  EXPECT_EQ(text_of(table, "csv"), "x\nNaN\nInfinity\n-Infinity\n0.1\n-0\n5e-324\n");
  const auto json = nlohmann::json::parse(text_of(table, "json"));
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const double want = std::get<double>(table.rows[i][0]),
                 got = JsonDocument(json[i]["x"].dump(), {"x", ""}).root().real();
    EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << want;
    EXPECT_EQ(std::signbit(got), std::signbit(want));
  }
}

TEST(TextOf, ADocumentIsBlocksForPeopleAndDataForPrograms) {
  const Document document{
      .blocks = {KeyValues{{{"model", "bard"}}}, Heading{"part"}, List{{"one", "two"}, "items"},
                 Paragraph{"A sentence."}, Bars{{{"2^0", 4}, {"2^1", 0}}}, Heading{}, kTable,
                 Conclusion{"clean", "No bug"}},
      .data = {{"all"}, {{int64_t{7}}}}};
  EXPECT_EQ(text_of(document, "table"),
            "model           bard\n\npart\nitems\n  one\n  two\nA sentence.\n"
            "  2^0              4  ##################################################\n"
            "  2^1              0\n\n"
            "name    count  size\na, \"b\"      7   0.1\nc          12   nan\nclean: No bug\n");
  EXPECT_EQ(text_of(document, "csv"), "all\n7\n");
  EXPECT_EQ(nlohmann::json::parse(text_of(document, "json"))[0]["all"], 7);
}

TEST(TextOf, AnUnknownFormatIsRefused) {
  EXPECT_EQ(error_of([] { text_of(kTable, "xml"); }),
            "--format wants one of table, json, csv, found \"xml\"");
}

class WriteFile : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = temp_path("write_file");
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directory(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string path(const char* name) const { return (dir_ / name).string(); }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_))
      names.push_back(entry.path().filename().string());
    return names;
  }

  std::filesystem::path dir_;
};

TEST_F(WriteFile, ReplacesTheWholeFileAndLeavesNothingElse) {
  write_file(path("a.json"), "a long first text");
  write_file(path("a.json"), "second");
  EXPECT_EQ(text_of(path("a.json")), "second");
  EXPECT_EQ(files(), std::vector<std::string>{"a.json"});
}

TEST_F(WriteFile, AFolderThatDoesNotExistIsSaid) {
  const std::string file = path("none/a.json");
  EXPECT_EQ(
      error_of([&] { write_file(file, "x"); }),
      file +
          " cannot be written: No such file or directory; name a file in a folder that exists "
          "and has room");
}

TEST_F(WriteFile, WhatCannotBeWrittenIsSaidBeforeTheWork) {
  std::filesystem::create_directory(dir_ / "folder");
  write_file(path("a.json"), "kept");
  write_file(path("folder.part"), "somebody's");
  for (const char* name : {"none/a.json", "folder"}) {
    const std::string sentence = error_of([&] { check_output({"--json", path(name)}, {}); });
    EXPECT_EQ(sentence, error_of([&] { write_file(path(name), "x"); }));
    EXPECT_NE(sentence, "");
  }
  for (const char* name : {"a.json", "new.json"}) check_output({"--json", path(name)}, {});
  EXPECT_EQ(text_of(path("a.json")), "kept");
  EXPECT_EQ(files().size(), 3u) << "nothing is made or removed";
}

TEST_F(WriteFile, WhatCannotBeReplacedLeavesNoPartBehind) {
  std::filesystem::create_directories(dir_ / "taken" / "inside");
  EXPECT_NE(error_of([&] { write_file(path("taken"), "x"); }).find("cannot be written"),
            std::string::npos);
  EXPECT_EQ(files(), std::vector<std::string>{"taken"});
}

TEST_F(WriteFile, ALinkStaysAndWhatItLeadsToIsWritten) {
  write_file(path("a.json"), "first");
  std::filesystem::create_directory(dir_ / "links");
  std::filesystem::create_symlink("../a.json", dir_ / "links" / "old");
  std::filesystem::create_symlink("../links/to_new", dir_ / "links" / "far");
  std::filesystem::create_symlink("../b.json", dir_ / "links" / "to_new");  // not there yet
  write_file(path("links/old"), "second");
  write_file(path("links/far"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "links" / "old"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "links" / "far"));
  EXPECT_EQ(text_of(path("a.json")), "second");
  EXPECT_EQ(text_of(path("b.json")), "new");
}

TEST_F(WriteFile, APipeGetsTheTextAndStays) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  write_file(path("pipe"), "text");
  char got[8] = {};
  EXPECT_EQ(read(reader, got, sizeof got), 4);
  EXPECT_EQ(std::string(got), "text");
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));
  EXPECT_EQ(files(), std::vector<std::string>{"pipe"});
}

TEST_F(WriteFile, WhereStdoutGoesToNothingIsReplaced) {
  const std::string file = path("out.txt");
  EXPECT_EXIT(
      {
        if (std::freopen(file.c_str(), "w", stdout) == nullptr) std::_Exit(1);
        print("before,");
        write_file(file, "the file,");
        print("after");
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EQ(text_of(file), "before,the file,after");
}

TEST_F(WriteFile, AFileOfTheCommandIsNotOverwritten) {
  write_file(path("a.json"), "x");
  std::filesystem::create_symlink("a.json", dir_ / "link");
  std::filesystem::create_symlink("new.json", dir_ / "to_new");
  const auto refusal = [&](const char* a, const char* b) {
    return error_of([&] { check_output({"--json", path(a)}, {{"--limits", ""}, {"A", path(b)}}); });
  };
  EXPECT_EQ(refusal("a.json", "a.json"), "--json and A were wanted to be two files, found " +
                                             path("a.json") +
                                             " for both: name another one for --json");
  EXPECT_NE(refusal("link", "a.json"), "");
  EXPECT_NE(refusal("to_new", "new.json"), "");
  EXPECT_NE(refusal("new.json", "../write_file/new.json"), "");
  std::filesystem::create_directory(dir_ / "x.trace");
  for (const char* within : {"x.trace/manifest.json", "x.trace/new.json"})
    EXPECT_EQ(refusal(within, "x.trace"), "--json was wanted outside A, found " + path(within) +
                                              " in the folder " + path("x.trace") +
                                              ": name a file elsewhere");
  check_output({"--json", path("a.json")}, {{"A", path("new.json")}});
  check_output({"--json", path("x.trace.json")}, {{"A", path("x.trace")}});
  check_output({"--json", ""}, {{"A", ""}});
}

}  // namespace
}  // namespace lockstep
