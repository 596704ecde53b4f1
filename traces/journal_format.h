// The bytes of a journal, as README.md lists them: what its writer and its reader share.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "probes/recorder.h"

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they lie");

inline constexpr std::string_view kJournalMagic = "lockstep journal";
inline constexpr uint32_t kJournalVersion = 1;
struct JournalHead {
  char magic[16];
  uint32_t version = kJournalVersion;
  uint32_t zero = 0;
};
static_assert(sizeof(JournalHead) == 24);

enum class JournalKind : uint32_t { manifest = 1, pass = 2, tensor = 3, result = 4 };

// Before each record. The checksum is the xxh3-64 of the whole record, this head included, with the
// checksum of the record before it (of the first: 0) in its own place: so a record that was
// altered, left out or moved is found by the next sum.
struct RecordHead {
  uint64_t checksum = 0;
  uint32_t bytes = 0;  // that follow this head
  JournalKind kind{};
};
static_assert(sizeof(RecordHead) == 16);
inline constexpr uint32_t kMostRecord = uint32_t{1} << 28;  // bytes

// In the folder of a trace.
inline std::string journal_in(const std::string& folder) { return folder + "/run.journal"; }
// Whether the numbers of a tensor are kept, somewhere else.
bool keeps_tensors(const Pass& pass);

// The checksum of a record that lies in `record`, whose own is not looked at.
uint64_t journal_checksum(char* record, size_t bytes, uint64_t before);
// A record with its head.
std::string journal_record(JournalKind kind, std::string_view body, uint64_t before);

// Bits of PassHead::flags.
inline constexpr uint32_t kBeginsAnew = 1;  // no tensor from here on names hashes of a pass before
inline constexpr uint32_t kInheritsKnown = 2, kTensorsKept = 4;
// A pass begins anew at the latest after so many: to read any one, no more have to be.
inline constexpr size_t kPassesOfBlock = 64;
struct PassHead {
  int32_t pass = 0;
  uint32_t flags = 0, tensors = 0;  // records of tensors that follow
  uint32_t rows = 0, logit_rows = 0, tables = 0, inherited = 0, logits = 0;
  uint32_t best = 0;  // ids and values of each row of logits
};
static_assert(sizeof(PassHead) == 36);
struct PackedRow {
  int32_t request = 0, position = 0, token = 0, phase = 0;
  int64_t slot = 0;
};
static_assert(sizeof(PackedRow) == 24);

// Bits of TensorHead::flags.
inline constexpr uint8_t kHasNumbers = 1;  // else of hashes alone
inline constexpr uint8_t kHasCounts = 2;   // else they are 0, or of hashes alone
enum class RowsAre : uint8_t { runs, of_the_pass, of_its_logits };
struct TensorHead {
  uint64_t xxh3 = 0;
  int32_t layer = 0;
  uint8_t flags = 0;
  RowsAre rows_are = RowsAre::runs;
  uint8_t point_bytes = 0, dtype_bytes = 0, axes = 0;
  uint8_t exponent_bytes = 0;  // of a count of elements: 1, 2 or 4
  uint16_t exponents = 0;      // bins that are not empty
  uint32_t runs = 0;
  uint32_t same = 0;    // leading row hashes that are those of the same cache in the last pass
  uint32_t hashes = 0;  // those that follow
};
static_assert(sizeof(TensorHead) == 32);
struct PackedNumbers {
  double min = 0, max = 0, absmax = 0, mean = 0, m2 = 0, sum_abs = 0, sum_squares = 0;
  int64_t absmax_at = -1;
};
static_assert(sizeof(PackedNumbers) == 64);
struct PackedCounts {
  int64_t nan = 0, pos_inf = 0, neg_inf = 0, zeros = 0, subnormals = 0;
  bool operator==(const PackedCounts&) const = default;
};
static_assert(sizeof(PackedCounts) == 40);

}  // namespace lockstep
