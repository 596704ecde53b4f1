// Files that were sealed as traces are and would have a reader take more than lies in them.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <filesystem>

#include "tests/traces/passes.h"
#include "traces/seal.h"

namespace lockstep {
namespace {

constexpr const char* kColumn = "passes/request";

class Hostile : public testing::Test {
 protected:
  void SetUp() override { write_test_trace(path_, 2); }

  // Replaces the column by what `make(file)` makes there, seals the file, and opens it as a trace.
  template <typename Make>
  std::string error_with(Make make) {
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    H5Ldelete(file, kColumn, H5P_DEFAULT);
    make(file);
    H5Fclose(file);
    write_seal(path_, kSealBytes);
    return open_error(path_);
  }
  // The same with a column of `rows` rows, stored as `how(properties)` says and never written.
  template <typename How>
  std::string error_of_column(hsize_t rows, How how) {
    return error_with([&](hid_t file) {
      const hid_t space = H5Screate_simple(1, &rows, nullptr), made = H5Pcreate(H5P_DATASET_CREATE);
      how(made);
      const hid_t column =
          H5Dcreate2(file, kColumn, H5T_STD_I32LE, space, H5P_DEFAULT, made, H5P_DEFAULT);
      EXPECT_GE(column, 0);
      H5Dclose(column);
      H5Pclose(made);
      H5Sclose(space);
    });
  }
  void expect(const std::string& error, const std::string& what) {
    EXPECT_NE(error.find("x.h5: passes/request " + what), std::string::npos) << error;
  }

  TempFolder scratch_;
  const std::string path_ = scratch_ / "x.h5";
};

TEST_F(Hostile, AColumnThatIsLargerThanTheFileIsNotRead) {
  const std::string more = "says that it has more bytes than are there: the file is damaged";
  expect(error_of_column(hsize_t{1} << 28, [](hid_t) {}), more);
}

TEST_F(Hostile, AColumnOfMoreBytesThanCanBeCountedIsNotRead) {
  expect(error_of_column(hsize_t{1} << 61,
                         [](hid_t made) {
                           constexpr hsize_t kChunk = 1 << 20;
                           H5Pset_chunk(made, 1, &kChunk);
                         }),
         "is stored in chunks, and a trace is contiguous and uncompressed: write it anew so");
}

TEST_F(Hostile, AColumnOfOtherFilesIsNotRead) {
  expect(error_of_column(4, [](hid_t made) { H5Pset_external(made, "/etc/passwd", 0, 16); }),
         "is stored in other files");
}

TEST_F(Hostile, AColumnThatIsPutTogetherIsNotRead) {
  expect(error_of_column(4,
                         [](hid_t made) {
                           constexpr hsize_t kRows = 4;
                           const hid_t all = H5Screate_simple(1, &kRows, nullptr);
                           H5Pset_virtual(made, all, ".", "/passes/token", all);
                           H5Sclose(all);
                         }),
         "is put together from other datasets");
}

TEST_F(Hostile, ALinkIsNotFollowed) {
  const std::string link = "is a link, and nothing of a trace is: write it into the file";
  expect(error_with([](hid_t file) {
           H5Lcreate_soft("/passes/pass", file, kColumn, H5P_DEFAULT, H5P_DEFAULT);
         }),
         link);
  expect(error_with([](hid_t file) {
           H5Lcreate_external("other.h5", "/passes/request", file, kColumn, H5P_DEFAULT,
                              H5P_DEFAULT);
         }),
         link);
}

}  // namespace
}  // namespace lockstep
