#include "kernels/base/sentence.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

TEST(Sentence, IsThatOfAnErrorAsItIs) {
  EXPECT_EQ(sentence_of(Error("x.h5: is damaged")), "x.h5: is damaged");
  EXPECT_EQ(sentence_of(std::runtime_error("of a library")), "of a library");
}

TEST(Sentence, OfALackOfMemoryHasNoWordOfALibrary) {
  EXPECT_EQ(sentence_of(std::bad_alloc()).find("there is not enough memory for this: "), 0U);
  EXPECT_EQ(sentence_of(std::bad_array_new_length()), sentence_of(std::bad_alloc()));
}

TEST(Sentence, OfFilesNamesTheFileAndTheReason) {
  const auto reason = std::make_error_code(std::errc::too_many_files_open);
  EXPECT_EQ(sentence_of(std::filesystem::filesystem_error("cannot check", "x.trace", reason)),
            "x.trace cannot be used (Too many open files): name another, or mend what the system "
            "says of it");
}

}  // namespace
}  // namespace lockstep
