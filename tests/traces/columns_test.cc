#include "traces/columns.h"

#include "kernels/base/check.h"
#include "tests/traces/passes.h"
#include "traces/hdf5_file.h"
#include "traces/manifest.h"
#include "traces/segment.h"

namespace lockstep {
namespace {

Columns two_passes() {
  Columns columns;
  columns.append(test_pass(0), 0);
  columns.append(test_pass(1), std::ssize(test_pass(0).tensors));
  return columns;
}

std::string trouble_with(const Columns& columns) {
  try {
    columns.check_sound("x.h5", 1 << 20);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Columns, GiveBackPasses) {
  const Columns columns = two_passes();
  EXPECT_EQ(trouble_with(columns), "");
  for (int i = 0; i < 2; ++i)
    expect_equal(columns.pass_at(static_cast<size_t>(i)), test_pass(i), false);
}

TEST(Columns, PathsNameTheTensor) {
  const Columns columns = two_passes();
  EXPECT_EQ(columns.index.path[0], "/tensors/pass000000/model/embed");
  EXPECT_EQ(columns.index.path[1], "/tensors/pass000000/layer000/attn.q");
  EXPECT_EQ(columns.index.path[2], "") << "only a digest was kept of it";
  EXPECT_EQ(columns.index.path[5], "/tensors/pass000000/layer000/attn.kv.request000002");
}

TEST(Columns, EveryOneIsCheckedAgainstTheOthers) {
  int checked = 0;
  const Columns sound = two_passes();
  visit_columns(sound, [&](const std::string& name, const auto& of, Columns::Per) {
    // pass numbers and the columns that count the others cannot be told from the rest.
    for (const bool longer : {true, false}) {
      Columns columns = two_passes();
      visit_columns(columns, [&](const std::string& other, auto& column, Columns::Per) {
        if (other == name) column.resize(column.size() + (longer ? 1 : -1));
      });
      EXPECT_NE(trouble_with(columns), "") << name << " of " << of.size();
      ++checked;
    }
  });
  EXPECT_EQ(checked, 2 * 62);
}

TEST(Columns, EdgesMustAscend) {
  Columns columns = two_passes();
  std::swap(columns.index.shape_edges[1], columns.index.shape_edges[2]);
  EXPECT_NE(trouble_with(columns).find("index/parts/shape_edges does not divide"),
            std::string::npos);
}

TEST(Columns, ARenamedPointIsNamed) {
  Columns columns = two_passes();
  columns.index.point[3] = "attn.keys";
  EXPECT_NE(trouble_with(columns).find("the point 'attn.keys', which this version does not know"),
            std::string::npos);
}

TEST(Columns, LayersMustBeThoseOfThePoint) {
  for (const auto& [tensor, layer] : {std::pair<size_t, int32_t>(0, 0), {1, -1}, {1, -2}}) {
    Columns columns = two_passes();
    columns.index.layer[tensor] = layer;
    EXPECT_NE(trouble_with(columns).find(fmt::format("is of layer {}, and ", layer)),
              std::string::npos)
        << trouble_with(columns);
  }
}

TEST(Columns, RowsMustBeThoseOfTheShape) {
  Columns columns = two_passes();
  ++columns.index.run_count[0];
  EXPECT_NE(trouble_with(columns).find("has 9 rows but names of 10"), std::string::npos);
}

TEST(Columns, DtypesAndShapesMustBeThoseOfATensor) {
  Columns columns = two_passes();
  columns.index.dtype[0] = "fp5";
  EXPECT_NE(trouble_with(columns).find("x.h5: the tensor embed of pass 0 is of the dtype 'fp5'"),
            std::string::npos);
  for (const int64_t extent : {int64_t{-1}, int64_t{1} << 60}) {
    columns = two_passes();
    columns.index.shape[1] = extent;  // of its rows' elements
    EXPECT_NE(trouble_with(columns).find("x.h5: the tensor embed of pass 0 has axes of fewer"),
              std::string::npos);
  }
}

TEST(Columns, RowsOfLogitsAndPositionsMustBeThere) {
  Columns columns = two_passes();
  columns.logit_rows[3] = 3;  // pass 1 has rows 0 to 2
  EXPECT_NE(trouble_with(columns).find("of pass 1 are to be among its 3 rows, found 3"),
            std::string::npos);
  columns.logit_rows[3] = -1;
  EXPECT_NE(trouble_with(columns).find("found -1"), std::string::npos);
  columns = two_passes();
  columns.index.run_first[0] = 2147483600;
  EXPECT_NE(trouble_with(columns).find("rows from position 2147483600 on"), std::string::npos);
  columns = two_passes();
  columns.position[2] = -4;
  EXPECT_NE(trouble_with(columns).find("a row at position -4"), std::string::npos);
}

TEST(Columns, APassThatIsThereTwiceIsRefused) {
  Columns columns = two_passes();
  columns.number[1] = 0;
  EXPECT_EQ(trouble_with(columns),
            "x.h5: pass 0 is there twice, and which of them the run computed is not known: write "
            "the trace anew");
}

TEST(Columns, StatisticsThatContradictThemselvesAreRefused) {
  const auto trouble = [](auto change) {
    Columns columns = two_passes();
    change(columns.index);
    return trouble_with(columns);
  };
  const auto of_embed = [](const std::string& name) {
    return "x.h5: in pass 0, the index contradicts itself of the tensor embed of layer -1 (its " +
           name + "): the file is damaged, write the trace anew";
  };
  EXPECT_EQ(trouble([](auto& index) { index.n[0] = 7; }), of_embed("n"));
  EXPECT_EQ(trouble([](auto& index) { index.n[0] = int64_t{1} << 62; }), of_embed("n"));
  EXPECT_EQ(trouble([](auto& index) { index.rms[0] *= 1 + 1e-9; }), of_embed("rms"));
  EXPECT_EQ(trouble([](auto& index) { index.zeros[0] = 1000; }), of_embed("zeros"));
  EXPECT_EQ(trouble([](auto& index) { ++index.exponent_count[0]; }), of_embed("exponent_count"));
  // attn.kv of request 2, of which hashes alone are known.
  EXPECT_NE(trouble([](auto& index) { index.xxh3[5] ^= 1; }).find("attn.kv of layer 0 (its xxh3)"),
            std::string::npos);
}

TEST(Columns, AMarginThatIsNotThatOfItsValuesIsRefused) {
  Columns columns = two_passes();
  columns.logits.margin[4] += 1;
  EXPECT_EQ(trouble_with(columns),
            "x.h5: the row of /logits of pass 1, request 1, position 1 has the margin 4.5, but its "
            "values have 3.5: the file is damaged, write the trace anew");
}

TEST(Runs, JoinConsecutivePositionsOfARequest) {
  const std::vector<Row> rows = {{0, 4}, {0, 5}, {1, 6}, {1, 6}, {0, 6}};
  std::vector<Row> back;
  const auto runs = runs_of(rows);
  for (const RowRun& run : runs) run.append_to(back);
  EXPECT_EQ(runs.size(), 4u);
  EXPECT_EQ(back, rows);
  EXPECT_TRUE(runs_of({}).empty());
}

// A file of this layout but for one thing: the reader says which.
std::string segment_error(const std::string& path) {
  try {
    SegmentReader reader(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Segment, WithoutItsAttributesOrColumnsIsNone) {
  const TempFolder scratch;
  {
    Hdf5File file = Hdf5File::create(scratch / "bare.h5");
    file.close();
    file.seal();
  }
  EXPECT_NE(segment_error(scratch / "bare.h5").find("no text attribute 'format'"),
            std::string::npos);
  const auto labelled = [&](const std::string& name, const char* version, int complete) {
    Hdf5File file = Hdf5File::create(scratch / name);
    file.set("/", "format", kFormat);
    file.set("/", "format_version", version);
    if (complete >= 0) file.set("/", "complete", complete);
    file.close();
    file.seal();
    return segment_error(scratch / name);
  };
  EXPECT_NE(labelled("a.h5", "9.9", 1).find("format version 2.2 was wanted, found 9.9"),
            std::string::npos);
  EXPECT_NE(labelled("b.h5", kFormatVersion, -1).find("its writing did not end"),
            std::string::npos);
  EXPECT_NE(labelled("c.h5", kFormatVersion, 0).find("its writing did not end"), std::string::npos);
  for (const char* before : {"1.0", "1.1", "1.2"})
    EXPECT_NE(
        labelled(std::string("of ") + before, before, 1).find("format version 2.2 was wanted"),
        std::string::npos);
}

TEST(Hdf5File, ChecksTypesAndBytes) {
  const TempFolder scratch;
  {
    Hdf5File file = Hdf5File::create(scratch / "x.h5");
    file.write("numbers", std::vector<int32_t>{1, 2, 3});
    file.write("none", std::vector<std::string>{});
    file.close();
    file.seal();
  }
  const Hdf5File file = Hdf5File::open(scratch / "x.h5");
  EXPECT_EQ(file.read<int32_t>("numbers"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(file.read<std::string>("none").empty());
  EXPECT_THROW(file.read<int64_t>("numbers"), Error);
  EXPECT_THROW(file.read<int32_t>("other"), Error);
  EXPECT_THROW(file.read_tensor("numbers", {3}, DType::f32), Error);
  EXPECT_THROW(file.text("/", "format"), Error);
  EXPECT_THROW(file.number("/", "complete"), Error);
}

}  // namespace
}  // namespace lockstep
