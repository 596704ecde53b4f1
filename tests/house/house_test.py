"""The inspector sees what it is for: each rule on a small house with one thing wrong in it."""
import contextlib
import io
import json
import pathlib
import shutil
import stat
import tempfile
import unittest

import figures
import headers
import house
import layers
import readme
import sizes
import tidy
import words


class Rule(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def expect(self, rule, *sentences, **arguments):
        """The rule finds exactly these troubles, each recognised by a part of its sentence."""
        found = list(rule(self.root, **arguments))
        self.assertEqual(len(found), len(sentences), found)
        for sentence, part in zip(found, sentences):
            self.assertIn(part, sentence)


class Layers(Rule):
    def include(self, path, *includes):
        self.write(path, "".join(f"#include {i}\n" for i in includes))

    def test_a_clean_house_is_clean(self):
        self.include("kernels/base/tensor.h", "<vector>")
        self.include("kernels/add.h", '"kernels/base/tensor.h"')
        self.include("src/model/qwen.cc", '"kernels/add.h"', "<sys/mman.h>", "<fmt/core.h>")
        self.include("tests/traces/writer_test.cc", "<gtest/gtest.h>", "<hdf5.h>")
        self.expect(layers.problems)

    def test_a_room_that_looks_up_is_named(self):
        self.include("kernels/add.h")
        self.include("src/engine/engine.h")
        self.include("src/judge/judge.cc", '"src/engine/engine.h"')
        self.include("reference/oracle.cc", '"kernels/add.h"')
        self.include("kernels/base/tensor.h", '"kernels/add.h"')
        self.expect(layers.problems, "kernels/base may not look into kernels",
                    "src/judge may not look into src/engine", "reference may not look into kernels")

    def test_foreign_headers_away_from_home_are_named(self):
        self.include("probes/digest.cc", "<hdf5.h>")
        self.include("src/judge/judge.cc", "<torch/torch.h>")
        self.include("kernels/matmul.cc", "<cuda_runtime.h>")
        self.include("src/report/output.h", "<nlohmann/json.hpp>")
        self.include("src/model/qwen.cc", "<boost/any.hpp>")
        self.expect(layers.problems, "belongs in a .cu", "at home in traces",
                    "at home in reference", "has no home", "headers name no foreign type")

    def test_includes_are_written_from_the_root(self):
        self.include("kernels/add.h")
        self.include("kernels/add.cc", '"add.h"')
        self.include("kernels/sub.cc", '"kernels/sub.h"')
        self.expect(layers.problems, '"add.h" is no path', '"kernels/sub.h" is no path')


class Headers(Rule):
    def test_a_header_that_needs_another_is_named(self):
        self.write("kernels/good.h", "#pragma once\n#include <string>\nstd::string name();\n")
        self.write("kernels/needy.h", "#pragma once\nstd::string name();\n")
        self.write("kernels/twice.h", "int name();\n")
        self.write("kernels/first.h", "#pragma once\nstd::string name();\n")
        self.write("kernels/first.cc", '#include "kernels/first.h"\n#include <string>\n')
        self.write("kernels/second.h", "#pragma once\nstd::string name();\n")
        self.write("kernels/second.cc", '#include <string>\n#include "kernels/second.h"\n')
        build = self.root / "build"
        self.expect(headers.problems, "needy.h: does not", "second.h: does not", "no #pragma once",
                    build=build)
        self.write("kernels/good.h", "#pragma once\nstd::string name();\n")
        self.expect(headers.problems, "good.h: does not", "needy.h: does not",
                    "second.h: does not", "no #pragma once", build=build)


class Sizes(Rule):
    def test_lengths_are_counted_where_they_are_too_long(self):
        body = "  step();\n"
        self.write("kernels/short.cc", "void f() {\n" + body * 58 + "}\n")
        self.write("kernels/long.cc", "namespace a {\nint g;\nvoid f(\n    int x) {\n" + body * 58 +
                   "}\n}\n")
        self.write("src/engine/file.cc", "int x;\n" * 500)
        self.write("tests/engine/file_test.cc", "int x;\n" * 500)
        self.write("tools/wide.cc", "// " + "x" * 98 + "\n")
        self.expect(sizes.problems, "long.cc:3: a function of 61 lines", "500 lines", "101 columns")

    def test_a_command_is_thin(self):
        work = "".join(f"int x{i};\n" for i in range(148))
        self.write("tools/run.cc", work + "int run_command(Args args) {\n}\n")
        self.write("tools/options.cc", work * 3)
        self.expect(sizes.problems, "a command has under 150")
        for i in range(10):
            self.write(f"tools/more{i}.cc", work)
        self.expect(sizes.problems, "a command has under 150", "tools: 2074 lines")

    def test_tables_and_strings_are_no_functions(self):
        self.write("probes/points.h",
                   "constexpr auto kPoints = make({\n" + '  {"(", 1},\n' * 70 + "});\n"
                   "struct Wide {\n" + "  int x;\n" * 70 + "};\n"
                   'const char* kText = R"(\nvoid f() {\n' + "x\n" * 70 + ')";\n')
        self.expect(sizes.problems)

    def test_members_and_lambdas_are_functions(self):
        loop = "  for (;;) {\n  }\n" * 30
        member = "struct A {\n  bool operator==(A) const {\n"
        self.write("kernels/a.cc", member + loop + "  }\n};\n")
        self.write("kernels/b.cc", "void f() {\n  g([] {\n" + loop + "  });\n}\n")
        self.expect(sizes.problems, "a.cc:2: a function of 62", "b.cc:1: a function of 64")


class Figures(Rule):
    HEADER = """// Overview.
#pragma once
namespace lockstep {
struct Ahead;  // no definition
using Alias = int;
enum class Kind : uint8_t { one, two };
template <typename T>
struct Owner {
  struct Nested {
    int f() const { return 1; }
  };
  void member(int x);
};
struct Owner::Later {};
inline constexpr int kTable[] = {1, 2};
inline constexpr auto kSum = std::max(1, 2);
static_assert(sizeof(int) == 4, "");
int free_function(int x, const std::function<void(int)>& f);
decltype(free_function) twin;
template <typename T, typename = std::enable_if_t<(sizeof(T) > 1)>>
bool operator==(const T& a, const T& b) { return f(a, {}) == 1; }
extern "C" {
const char* in_c(void);
}
}  // namespace lockstep
"""

    def heads(self, test):
        return [head for head in figures.declarations(self.HEADER) if test(head)]

    def test_types_and_functions_of_a_namespace_are_counted(self):
        names = [head.split("{")[0].strip() for head in self.heads(figures.is_type)]
        self.assertEqual(names, ["enum class Kind : uint8_t", "struct Owner"])
        names = [head.split("(")[0] for head in self.heads(figures.is_function)]
        self.assertEqual(names, ["int free_function", "decltype", "bool operator==",
                                 "const char* in_c"])

    def test_a_class_is_as_long_as_it_is_written(self):
        text = "class A final\n    : public B {\n  struct C {\n    int x;\n  };\n};\nC f() {\n}\n"
        self.assertEqual(list(figures.classes(text)), [("C", 3), ("A", 6)])

    def test_a_file_names_an_op(self):
        for named in ("inject(&Ops::add, f);", "x = lockstep::add;", "add_cuda(c, a);",
                      "check_add(a);", "my_ops.add(c, a);", "Ops own;\nown.add(c);",
                      "add(context, a);", 'if (op == "add") f();', "decltype(add) f;"):
            self.assertTrue(figures.names(named, {"add"}), named)
        for other in ("// Ops::add", "list.add(x);", 'say("add these");', "at::add(x, y);",
                      '#include "kernels/add.h"', 'f("add");\ny = row.add;', "add_all(context);"):
            self.assertFalse(figures.names(other, {"add"}), other)

    def test_kernels_forward_passes_and_faults_do_not_count(self):
        for path in ("kernels/ops.h", "kernels/cuda/cuda_ops.cu", "kernels/plugin/user_ops.cc",
                     "src/replay/repro.cc"):
            self.assertTrue(figures.counts(path), path)
        for path in ("kernels/add.cc", "kernels/cuda/add_rms_norm.cu", "src/model/qwen.cc",
                     "src/faults/norm_faults.cc", "kernels/faults/broken_ops.cu"):
            self.assertFalse(figures.counts(path), path)

    def test_a_goal_that_is_missed_is_a_trouble(self):
        self.write("kernels/ops.h", '// The table.\nOpRow{"add", &Ops::add, add}\n')
        for i in range(7):
            self.write(f"src/judge/a{i}.cc", "// A use.\nint a = f(&Ops::add);\n")
        self.write("src/judge/a.h", "int f();\n" + "int x = static_cast<int>(1);\n" * 20)
        with contextlib.redirect_stdout(io.StringIO()) as table:
            self.expect(figures.problems, "comments", "free functions", "static_cast",
                        "files that name an op")
        self.assertIn("types in headers", table.getvalue())


class Words(Rule):
    def test_each_word_is_seen(self):
        self.write("kernels/a.cc", "// TO" "DO: later\n#define MAX 3\n")
        self.write("src/b.cc", '  fail("not ' 'implemented");\n#if 0\n')
        self.write("tests/c_test.cc", "TEST(A, DISABLED_b) {\n  GTEST_SKIP();\n")
        self.write("tools/d", "cat /wo" "rk/x\n")
        self.write("tools/e", b"\xff\xfe".decode("latin1"))
        self.expect(words.problems, "unfinished", "defines a macro", "unfinished", "switched off",
                    "outside the project", "switched off", "without a reason")

    def test_a_comment_of_the_product_begins_with_no_fragment(self):
        self.write("src/a.cc", "// Of a norm.\nint a;\n"
                               "  // The sum.\n  // As it is.\n// Offsets.\n")
        self.write("tests/a_test.cc", "// What a test may say.\n")
        self.expect(words.problems, "src/a.cc:1: begins a comment without a subject: // Of a norm.")


class Readme(Rule):
    def setUp(self):
        super().setUp()
        self.binary = self.write("build/lockstep", """#!/bin/sh
                                 case "$1" in run|--help) echo "  --model DIR";; *) exit 2;; esac
                                 """)
        self.binary.chmod(self.binary.stat().st_mode | stat.S_IXUSR)

    def test_what_is_shown_must_exist(self):
        self.write("tests/run", "").chmod(0o755)
        self.write("README.md", "```sh\nlockstep run --model X  # --note\nlockstep fly\n"
                   "build/lockstep run \\\n  --mode X | head --lines 3\n"
                   "tests/run\ntools/none\n```\n"
                   "    lockstep --modl\n\nSee `lockstep COMMAND --x` or `lockstep\nwalk; x`.\n")
        self.expect(readme.problems, "no command fly", "no option --mode:",
                    "there is no tools/none", "no option --modl:",
                    "no command walk", binary=self.binary)

    def test_a_readme_without_commands_is_no_proof(self):
        self.expect(readme.problems, "is missing", binary=self.binary)
        self.write("README.md", "No command.\n")
        self.expect(readme.problems, "shows no lockstep command", binary=self.binary)


@unittest.skipUnless(shutil.which("clang-tidy"), "there is no clang-tidy on this machine")
class Tidy(Rule):
    def build(self, *paths):
        self.write("compile_commands.json", json.dumps([
            {"file": str(self.root / path), "directory": str(self.root),
             "command": f"c++ -I{self.root} -o x.o -c {self.root / path}"} for path in paths]))

    def setUp(self):
        super().setUp()
        self.write(".clang-tidy",
                   "Checks: '-*,bugprone-sizeof-expression'\nWarningsAsErrors: '*'\n")
        self.write("kernels/a.h", "constexpr int kSize = 4;\n")
        self.write("kernels/a.cc", '#include "kernels/a.h"\nint f() { return kSize; }\n')

    def test_what_passed_is_checked_again_only_when_it_changes(self):
        self.write("kernels/left_out.cc", "int g() { return sizeof(this); }\n")
        self.build("kernels/a.cc")
        self.expect(tidy.problems, build=self.root)
        self.assertEqual(len(list((self.root / "house").iterdir())), 1)
        self.write("kernels/a.cc", "long f() { return sizeof(sizeof(int)); }\n")
        self.expect(tidy.problems, "bugprone-sizeof-expression", build=self.root)

    def test_files_that_the_build_compiles_together_are_read_too(self):
        self.write("kernels/b.cc", "long b() { return sizeof(sizeof(int)); }\n")
        together = self.write("Unity/unity_0_cxx.cxx", "".join(
            f'#include "{self.root / path}"\n' for path in ("kernels/a.cc", "kernels/b.cc")))
        self.build(together.relative_to(self.root))
        self.expect(tidy.problems, "bugprone-sizeof-expression", build=self.root)

    def test_names_clash_in_no_other_folder(self):
        helper = "namespace { int helper() { return 1; } }\n"
        self.write("kernels/b.cc", helper + "int b() { return helper(); }\n")
        self.write("kernels/c.cc", helper + "int c() { return helper(); }\n")
        self.build("kernels/b.cc", "kernels/c.cc")
        self.expect(tidy.problems, "names clash", build=self.root)

    def test_files_whose_names_clash_are_read_alone(self):
        helper = "namespace { int helper() { return 1; } }\n"
        self.write("src/judge/ops/b.cc", helper + "int b() { return helper(); }\n")
        self.write("src/judge/ops/c.cc", helper + "int c() { return helper(); }\n")
        self.build("kernels/a.cc", "src/judge/ops/b.cc", "src/judge/ops/c.cc")
        self.expect(tidy.problems, build=self.root)
        self.write("src/judge/ops/c.cc", helper + "long c() { return sizeof(sizeof(int)); }\n")
        self.expect(tidy.problems, "bugprone-sizeof-expression", build=self.root)
        self.write("src/judge/ops/c.cc", helper)
        self.write("kernels/a.cc", "long f() { return sizeof(sizeof(int)); }\n")
        self.expect(tidy.problems, "bugprone-sizeof-expression", build=self.root)
        self.write("kernels/a.cc", "int f() { return unknown; }\n")
        self.expect(tidy.problems, "undeclared identifier", build=self.root)


class Comments(unittest.TestCase):
    def test_only_code_is_left(self):
        text = 'int x = 1\'000; // "a\nchar c = \'"\'; /* {\n } */ f("\\"{");\n'
        left = house.without_comments_and_strings(text)
        self.assertEqual(left.count("\n"), text.count("\n"))
        self.assertNotIn("{", left)
        self.assertIn("1'000;", left)
        self.assertIn("f(", left)


if __name__ == "__main__":
    unittest.main()
