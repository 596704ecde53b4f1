// Traces that another program writes: the least that a trace is, and every way to fall short of it.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <filesystem>
#include <map>

#include "probes/qwen_graph.h"
#include "tests/helpers.h"
#include "traces/bare_file.h"
#include "traces/hdf5_parts.h"
#include "traces/kept_result.h"

namespace lockstep {
namespace {

// A file as h5py writes it.
class Foreign {
 public:
  explicit Foreign(const std::string& path) {
    file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    links_ = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links_, 1);
  }
  ~Foreign() {
    H5Pclose(links_);
    H5Fclose(file_);
  }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;

  template <typename T>
  void put(const std::string& path, hid_t type, const std::vector<T>& values,
           std::vector<hsize_t> dims = {}, hid_t made = H5P_DEFAULT) {
    if (dims.empty()) dims = {values.size()};
    const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
    const hid_t set = H5Dcreate2(file_, path.c_str(), type, space, links_, made, H5P_DEFAULT);
    ASSERT_GE(set, 0) << path;
    H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(set);
    H5Sclose(space);
  }
  // A text of fixed length, as numpy's bytes; with variable, as h5py's str.
  void say(const std::string& object, const char* name, const std::string& text, bool variable) {
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, variable ? H5T_VARIABLE : text.size());
    const hid_t owner = H5Oopen(file_, object.c_str(), H5P_DEFAULT);
    const hid_t made = H5Acreate2(owner, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const char* at = text.c_str();
    if (variable)
      H5Awrite(made, type, &at);
    else
      H5Awrite(made, type, text.c_str());
    H5Aclose(made);
    H5Oclose(owner);
    H5Sclose(space);
    H5Tclose(type);
  }
  hid_t id() const { return file_; }
  hid_t links() const { return links_; }

 private:
  hid_t file_ = -1, links_ = -1;
};

const std::string kNorm = "/tensors/pass0/layer0/attn.norm";
const std::vector<float> kNumbers = {1, -0.5F, 3, 0.25F, 2, 0, -1, 8};

class Bare : public testing::Test {
 protected:
  // Two tokens, and a tensor of two rows of four.
  static void put_rows(Foreign& file) {
    file.put<int64_t>("/passes/token", H5T_STD_I64LE, {5, 6});
    file.put<int64_t>("/passes/position", H5T_STD_I64LE, {0, 1});
  }
  static void put_norm(Foreign& file) { file.put(kNorm, H5T_IEEE_F32LE, kNumbers, {2, 4}); }
  template <typename Make>
  std::unique_ptr<TraceReader> opened(Make make) {
    {
      Foreign file(path_);
      make(file);
    }
    return open_trace(path_);
  }
  // Everything is read, or it is an Error.
  template <typename Make>
  void expect_refused(const std::string& phrase, Make make) {
    expect_trouble(phrase, [&] {
      const auto trace = opened(make);
      for (int i = 0; i < trace->passes(); ++i) trace->read(i, true);
    });
  }

  TempFolder scratch_;
  const std::string path_ = scratch_ / "x.h5";
};

TEST_F(Bare, TraceHasAllThatATraceHas) {
  const auto trace = opened([](Foreign& file) {
    put_rows(file);
    put_norm(file);
  });
  EXPECT_TRUE(trace->complete());
  EXPECT_EQ(trace->problems(), std::vector<std::string>{kUnsealed});
  const Manifest& manifest = trace->manifest();
  EXPECT_EQ(manifest.dtype, DType::f32);
  EXPECT_FALSE(manifest.graph_known);
  EXPECT_TRUE(manifest.contracts.empty());
  ASSERT_EQ(trace->passes(), 1);
  for (const bool data : {false, true, false}) {
    const Pass pass = trace->read(0, data);
    ASSERT_EQ(pass.info.rows.size(), 2u);
    EXPECT_EQ(pass.info.rows[1].token, 6);
    EXPECT_EQ(pass.info.rows[1].phase, Phase::prefill);
    EXPECT_FALSE(pass.info.inherited_known);
    ASSERT_EQ(pass.tensors.size(), 1u);
    const RecordedTensor& tensor = pass.tensors[0];
    EXPECT_EQ(tensor.point->name, "attn.norm");
    EXPECT_EQ(tensor.layer, 0);
    EXPECT_EQ(tensor.rows, (std::vector<Row>{{0, 0}, {0, 1}}));
    EXPECT_EQ(tensor.digest.absmax, 8);
    EXPECT_EQ(tensor.digest.hash, hash_of(kNumbers.data(), 32));
    EXPECT_EQ(tensor.row_hashes[1], hash_of(kNumbers.data() + 4, 16));
    EXPECT_EQ(tensor.data.view().empty(), !data);
  }
}

TEST_F(Bare, ColumnsHaveAnyWidth) {
  const auto trace = opened([](Foreign& file) {
    file.put<uint16_t>("/passes/token", H5T_STD_U16LE, {5, 40000, 7});
    file.put<int8_t>("/passes/position", H5T_STD_I8LE, {0, 1, 2});
    file.put<uint32_t>("/passes/pass", H5T_STD_U32LE, {3, 3, 9});
    file.put<int32_t>("/passes/request", H5T_STD_I32BE, {0, 0, 0});
    file.put(kNorm.substr(0, 13) + "000000003/layer0/attn.norm", H5T_IEEE_F32LE, kNumbers, {2, 4});
  });
  ASSERT_EQ(trace->passes(), 2);
  EXPECT_EQ(trace->read(0, false).info.rows[1].token, 40000);
  EXPECT_EQ(trace->read(0, false).tensors.size(), 1u);
  const Pass last = trace->read(1, true);
  EXPECT_EQ(last.info.pass, 9);
  EXPECT_EQ(last.info.rows[0].phase, Phase::decode);
  EXPECT_TRUE(last.tensors.empty());
}

TEST_F(Bare, NumbersOfA16BitRunMayBeFp32OrBits) {
  for (const bool variable : {false, true}) {
    const auto trace = opened([&](Foreign& file) {
      put_rows(file);
      file.say("/", "dtype", "bf16", variable);
      file.say("/", "schema", "hf", variable);
      put_norm(file);
      file.put<uint16_t>("/tensors/pass0/layer0/mlp.norm", H5T_STD_U16LE, {0x3f80, 0xbf00}, {2, 1});
      file.put<float>("/tensors/pass0/model/logits", H5T_IEEE_F32LE, {1, 0.1F}, {1, 1, 2});
    });
    EXPECT_EQ(trace->manifest().dtype, DType::bf16);
    EXPECT_EQ(trace->manifest().provenance.at(kSchema), "hf");
    const Pass pass = trace->read(0, true);
    const RecordedTensor* norm = pass.find(point("attn.norm"), 0);
    ASSERT_NE(norm, nullptr);
    EXPECT_EQ(norm->dtype, DType::bf16);
    EXPECT_EQ(norm->data.as<uint16_t>()[1], 0xbf00);
    EXPECT_EQ(pass.find(point("mlp.norm"), 0)->data.as<uint16_t>()[0], 0x3f80);
    // Logits that were computed further than that stay what they are.
    const RecordedTensor* logits = pass.find(point("logits"), -1);
    EXPECT_EQ(logits->dtype, DType::f32);
    EXPECT_EQ(logits->shape, (Shape{1, 2}));
    EXPECT_EQ(logits->rows, std::vector<Row>({{0, 1}}));
    EXPECT_EQ(pass.info.logit_rows, std::vector<int32_t>{1});
    ASSERT_EQ(pass.logits.size(), 1u);
    EXPECT_EQ(pass.logits[0].ids[0], 0);
  }
}

// A run's dtype, where nothing says it, is that of a product's numbers, then of others, and of what
// is read from a weight or may be wider last. The file is fp32 throughout.
TEST_F(Bare, ADtypeThatNobodySaysIsThatOfTheNumbers) {
  const auto numbers = [](DType dtype, int count) {
    std::vector<float> made(128, 0);
    for (int i = 0; i < count; ++i) {
      const float x = 1 / static_cast<float>(i + 3);
      made[i] = dtype == DType::bf16  ? to_float(from_float<BFloat16>(x))
                : dtype == DType::f16 ? to_float(from_float<Float16>(x))
                                      : x;
    }
    return made;
  };
  const auto found = [&](std::map<std::string, std::pair<DType, int>> tensors) {
    const auto trace = opened([&](Foreign& file) {
      put_rows(file);
      for (const auto& [path, of] : tensors)
        file.put("/tensors/pass0/" + path, H5T_IEEE_F32LE, numbers(of.first, of.second), {2, 64});
    });
    const DType dtype = trace->manifest().dtype;
    EXPECT_EQ(trace->problems().size(), dtype == DType::f32 ? 1u : 2u);
    return dtype;
  };
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    EXPECT_EQ(found({{"layer0/attn.o", {dtype, 128}}}), dtype);
    EXPECT_EQ(found({{"layer0/attn.o", {dtype, 64}}}), dtype);
    const DType other = dtype == DType::bf16 ? DType::f32 : DType::bf16;
    EXPECT_EQ(found({{"model/embed", {other, 128}},
                     {"model/logits", {other, 128}},
                     {"layer0/attn.norm", {other, 128}},
                     {"layer0/mlp.down", {dtype, 128}}}),
              dtype);
    EXPECT_EQ(found({{"model/embed", {other, 128}},
                     {"layer0/attn.norm", {dtype, 128}},
                     {"model/logits", {other, 128}}}),
              dtype);
    // One product of a layer may be kept wider, or be rounded; logits of experts may be wider.
    EXPECT_EQ(found({{"layer0/attn.o", {other, 128}},
                     {"layer0/mlp.down", {dtype, 128}},
                     {"layer0/mlp.up", {dtype, 128}},
                     {"layer1/attn.o", {other, 128}},
                     {"layer1/mlp.down", {other, 128}}}),
              dtype);
    EXPECT_EQ(found({{"layer0/mlp.router", {other, 128}}, {"layer0/attn.norm", {dtype, 128}}}),
              dtype);
    EXPECT_EQ(found({{"layer0/mlp.router", {dtype, 128}}, {"layer0/mlp.weights", {other, 128}}}),
              dtype);
    // Too few numbers say nothing.
    EXPECT_EQ(found({{"layer0/attn.norm", {dtype, 128}}, {"layer0/attn.o", {other, 63}}}), dtype);
    EXPECT_EQ(found({{"layer0/attn.o", {dtype, 63}}}), DType::f32);
  }
}

// Bits are numbers of the dtype that others are found to have.
TEST_F(Bare, BitsAreOfTheDtypeThatIsFound) {
  std::vector<float> halves(128);
  for (int i = 0; i < 128; ++i)
    halves[i] = to_float(from_float<BFloat16>(1 / static_cast<float>(i + 3)));
  const auto trace = opened([&](Foreign& file) {
    put_rows(file);
    file.put<uint16_t>("/tensors/pass0/layer0/attn.o", H5T_STD_U16LE, {0x3f80, 0xbf00}, {2, 1});
    file.put("/tensors/pass0/layer0/attn.norm", H5T_IEEE_F32LE, halves, {2, 64});
  });
  EXPECT_EQ(trace->manifest().dtype, DType::bf16);
  EXPECT_EQ(trace->read(0, true).find(point("attn.o"), 0)->data.as<uint16_t>()[1], 0xbf00);
}

// fp16 holds numbers of bf16 as well, for programs that have none.
TEST_F(Bare, NumbersOfABf16RunMayBeFp16) {
  for (const bool of_bf16 : {true, false}) {
    std::vector<uint16_t> bits(128);
    for (int i = 0; i < 128; ++i) {
      const float x = 1 / static_cast<float>(i + 3);
      bits[i] = from_float<Float16>(of_bf16 ? to_float(from_float<BFloat16>(x)) : x).bits;
    }
    const auto trace = opened([&](Foreign& file) {
      put_rows(file);
      file.put("/tensors/pass0/layer0/attn.o", hdf5_type_of(DType::f16), bits, {2, 64});
    });
    const DType dtype = of_bf16 ? DType::bf16 : DType::f16;
    EXPECT_EQ(trace->manifest().dtype, dtype);
    EXPECT_EQ(trace->problems().size(), of_bf16 ? 2u : 1u);
    EXPECT_EQ(trace->read(0, true).tensors.at(0).dtype, dtype);
  }
}

TEST_F(Bare, ADtypeThatADatasetSaysIsHeldTo) {
  const auto with = [](const std::string& dtype) {
    return [dtype](Foreign& file) {
      put_rows(file);
      file.put<float>(kNorm, H5T_IEEE_F32LE, {1, 0.1F}, {2, 1});
      file.say(kNorm, "dtype", dtype, true);
    };
  };
  EXPECT_EQ(opened(with("fp32"))->read(0, true).tensors[0].dtype, DType::f32);
  expect_refused("says that it is bf16, and element 1 is 0.1, which is none", with("bf16"));
  expect_refused("dtype 'bf17' is not known", with("bf17"));
  expect_refused("its dtype was wanted to be bf16, fp16 or fp32, found int64", with("int64"));
}

TEST_F(Bare, ACacheIsOfARequest) {
  const auto trace = opened([](Foreign& file) {
    put_rows(file);
    file.put("/tensors/pass0/layer0/attn.kv.request000000", H5T_IEEE_F32LE, kNumbers, {2, 2, 1, 2});
  });
  const RecordedTensor tensor = trace->read(0, true).tensors.at(0);
  EXPECT_TRUE(tensor.point->is_cache());
  EXPECT_EQ(tensor.rows, (std::vector<Row>{{0, 0}, {0, 1}}));
  EXPECT_FALSE(tensor.digest.has_numbers());
}

TEST_F(Bare, TraceKeepsNoResult) {
  opened([](Foreign& file) {
    put_rows(file);
    put_norm(file);
  });
  const std::string before = text_of(path_);
  EXPECT_FALSE(can_keep_result(path_));
  EXPECT_EQ(read_kept_result(path_), "");
  EXPECT_EQ(text_of(path_), before);
}

TEST_F(Bare, TraceThatLacksSomethingIsRefusedInTheWordsOfThePage) {
  expect_refused("has no /passes/token: a trace has the token of each row there (traces/README.md",
                 [](Foreign&) {});
  expect_refused("has no /passes/position",
                 [](Foreign& file) { file.put<int64_t>("/passes/token", H5T_STD_I64LE, {5}); });
  expect_refused("has no group /tensors: a trace has its tensors there",
                 [](Foreign& file) { put_rows(file); });
  expect_refused("has no tensor of a model's numbers", [](Foreign& file) {
    put_rows(file);
    file.put<int64_t>("/tensors/pass0/model/token", H5T_STD_I64LE, {5}, {1});
  });
}

TEST_F(Bare, RowsThatDoNotFitAreRefused) {
  const auto rows = [](std::vector<int64_t> token, std::vector<int64_t> position,
                       std::vector<int64_t> request, std::vector<int64_t> pass) {
    return [=](Foreign& file) {
      file.put("/passes/token", H5T_STD_I64LE, token);
      file.put("/passes/position", H5T_STD_I64LE, position);
      file.put("/passes/request", H5T_STD_I64LE, request);
      file.put("/passes/pass", H5T_STD_I64LE, pass);
      put_norm(file);
    };
  };
  expect_refused("found 2 of token, 1 of position, 2 of request, 2 of pass",
                 rows({1, 2}, {0}, {0, 0}, {0, 0}));
  expect_refused("/passes/position has -1, wanted 0 to", rows({1, 2}, {0, -1}, {0, 0}, {0, 0}));
  expect_refused("/passes/token has 4294967296, wanted 0 to",
                 rows({1, int64_t{1} << 32}, {0, 1}, {0, 0}, {0, 0}));
  expect_refused("in the order in which the passes ran, found 0 after 1",
                 rows({1, 2}, {0, 1}, {0, 0}, {1, 0}));
  expect_refused("found request 0 position 2 after request 0 position 0",
                 rows({1, 2}, {0, 2}, {0, 0}, {0, 0}));
  expect_refused("one after another", rows({1, 2, 3}, {0, 0, 1}, {0, 1, 0}, {0, 0, 0}));
  expect_refused("attn.norm has 2 rows, and pass 0 has 3 in /passes",
                 rows({1, 2, 3}, {0, 1, 2}, {0, 0, 0}, {0, 0, 0}));
  expect_refused("there are tensors of pass 0, and no row of it",
                 rows({1, 2}, {0, 1}, {0, 0}, {4, 4}));
}

TEST_F(Bare, NamesThatAreNoneAreRefused) {
  const auto at = [](const std::string& path) {
    return [path](Foreign& file) {
      put_rows(file);
      file.put(path, H5T_IEEE_F32LE, kNumbers, {2, 4});
    };
  };
  expect_refused("is of no point; did you mean \"attn.norm\"?",
                 at("/tensors/pass0/layer0/attn.nrm"));
  expect_refused("wanted to be named as a pass", at("/tensors/step0/layer0/attn.norm"));
  expect_refused("wanted to be named layer000000 or model", at("/tensors/pass0/l0/attn.norm"));
  expect_refused("is of a layer: write it under layer000000", at("/tensors/pass0/model/attn.norm"));
  expect_refused("is of no layer: write it under model", at("/tensors/pass0/layer0/embed"));
  expect_refused("a model has at most 65536 layers", at("/tensors/pass0/layer70000/attn.norm"));
  expect_refused("/tensors/pass0 is no group", at("/tensors/pass0"));
  expect_refused("is there twice, under two names", [](Foreign& file) {
    put_rows(file);
    put_norm(file);
    file.put("/tensors/pass0/layer00/attn.norm", H5T_IEEE_F32LE, kNumbers, {2, 4});
  });
  expect_refused("pass 0 is there twice", [](Foreign& file) {
    put_rows(file);
    put_norm(file);
    file.put("/tensors/pass00/layer0/mlp.norm", H5T_IEEE_F32LE, kNumbers, {2, 4});
  });
}

TEST_F(Bare, TypesThatAreNoneAreRefused) {
  const auto of = [](hid_t type, const std::string& point) {
    return [=](Foreign& file) {
      put_rows(file);
      file.put<int64_t>("/tensors/pass0/" + point, type, {1, 2}, {2, 1});
    };
  };
  expect_refused("no float32, float16 or bfloat16", of(H5T_IEEE_F64LE, "layer0/attn.norm"));
  expect_refused("no float32, float16 or bfloat16", of(H5T_IEEE_F32BE, "layer0/attn.norm"));
  expect_refused("no integer of at most 64 bits", [](Foreign& file) {
    put_rows(file);
    put_norm(file);
    file.put<float>("/tensors/pass0/layer0/mlp.experts", H5T_IEEE_F32LE, {1, 2}, {2, 1});
  });
  expect_refused("nothing says whether it holds bf16 or fp16",
                 of(H5T_STD_U16LE, "layer0/attn.norm"));
  expect_refused("has the shape [2, 1], wanted axes of token, head, dim",
                 of(H5T_IEEE_F32LE, "layer0/attn.q"));
  expect_refused("is not a row of integers", [](Foreign& file) {
    file.put<float>("/passes/token", H5T_IEEE_F32LE, {1, 2});
    file.put<int64_t>("/passes/position", H5T_STD_I64LE, {0, 1});
  });
  expect_refused("schema_json", [](Foreign& file) {
    put_rows(file);
    put_norm(file);
    file.say("/", "schema_json", "{\"attn.nrm\": \"hf\"}", true);
  });
}

// Memory is in proportion to the file, whatever it claims.
TEST_F(Bare, HostileFilesAreRefused) {
  const auto stored = [](auto how) {
    return [how](Foreign& file) {
      put_rows(file);
      const hid_t made = H5Pcreate(H5P_DATASET_CREATE);
      how(made);
      file.put(kNorm, H5T_IEEE_F32LE, kNumbers, {2, 4}, made);
      H5Pclose(made);
    };
  };
  constexpr hsize_t kChunk[] = {1, 4};
  expect_refused(
      "is stored in chunks, and a trace is contiguous and uncompressed: write it anew so, in h5py "
      "without chunks=, compression= and maxshape=",
      stored([&](hid_t made) { H5Pset_chunk(made, 2, kChunk); }));
  expect_refused("is stored in other files",
                 stored([](hid_t made) { H5Pset_external(made, "/etc/passwd", 0, 64); }));
  expect_refused("is a link, and nothing of a trace is", [](Foreign& file) {
    put_rows(file);
    put_norm(file);
    H5Lcreate_soft(kNorm.c_str(), file.id(), "/tensors/pass0/layer0/mlp.norm", file.links(),
                   H5P_DEFAULT);
  });
  expect_refused("is a link, and nothing of a trace is", [](Foreign& file) {
    put_rows(file);
    put_norm(file);
    H5Lcreate_external("other.h5", "/x", file.id(), "/tensors/pass0/layer1", file.links(),
                       H5P_DEFAULT);
  });
  // One dataset under many names would be read as often.
  expect_refused("larger together than the file is", [](Foreign& file) {
    put_rows(file);
    const std::vector<float> many(8192);
    file.put(kNorm, H5T_IEEE_F32LE, many, {2, 4096});
    for (int layer = 1; layer < 4; ++layer)
      H5Lcreate_hard(file.id(), kNorm.c_str(), file.id(),
                     ("/tensors/pass0/layer" + std::to_string(layer) + "/attn.norm").c_str(),
                     file.links(), H5P_DEFAULT);
  });
}

TEST_F(Bare, DamageIsAnError) {
  opened([](Foreign& file) {
    put_rows(file);
    put_norm(file);
  });
  const std::string whole = text_of(path_);
  for (size_t size = 8; size < whole.size(); size += 97) {
    scratch_.write("x.h5", whole.substr(0, size));
    EXPECT_NE(error_of([&] { open_trace(path_)->read(0, true); }), "") << size;
  }
}

TEST(QwenShape, IsThatOfTheLeastModelThatShowsThePlaces) {
  for (const QwenShape& shape :
       {QwenShape{2, true}, QwenShape{3, false}, QwenShape{3, true, {0, 2}, true}}) {
    const Graph wanted = qwen_graph(shape);
    EXPECT_EQ(qwen_graph(QwenShape::showing(wanted.places())), wanted) << text_of(wanted);
  }
  // A few points are enough, of the last layer and of what not all models have.
  const std::vector<Place> few = {{&point("attn.k_norm"), 0}, {&point("mlp.residual"), 3}};
  EXPECT_EQ(qwen_graph(QwenShape::showing(few)), qwen_graph({4, true}));
}

}  // namespace
}  // namespace lockstep
