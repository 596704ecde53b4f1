// A journal, with what may be kept behind it: as bytes, or with numbers of the records of a sound
// one changed and every checksum made anew, which no input would guess.
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/fuzz/target.h"
#include "tests/traces/journal_bytes.h"
#include "tests/traces/passes.h"
#include "traces/kept_result.h"

namespace lockstep::fuzz {
namespace {

std::vector<JournalPart> sound_journal() {
  const std::string path = path_of("sound.journal");
  const auto writer = create_trace(path, test_manifest(TraceLevel::digest));
  for (int i = 0; i < 3; ++i) {
    Pass pass = test_pass(i, false);
    pass.tensors.resize(6);  // to the caches of the first layer
    writer->write(pass);
  }
  writer->finish(ended_requests());
  std::ifstream file(path, std::ios::binary);
  return journal_parts({std::istreambuf_iterator<char>(file), {}});
}

// A record is left out or is there twice, or bytes of it are others.
void change(std::vector<JournalPart>& parts, Bytes& bytes) {
  const size_t i = bytes.byte() % parts.size();
  const uint8_t what = bytes.byte();
  std::string& body = parts[i].body;
  if (what % 8 == 0 && parts.size() > 1) {
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
  } else if (what % 8 == 1) {
    parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(i), JournalPart(parts[i]));
  } else if (what % 8 == 2) {
    parts[i].kind = static_cast<JournalKind>(bytes.byte());
  } else if (what % 8 == 3) {
    body.resize(body.size() / 2);
  } else if (const size_t at = bytes.byte() | size_t{bytes.byte()} << 8; at < body.size()) {
    const int64_t number = bytes.number();
    std::memcpy(&body[at], &number, std::min(size_t{1} << (what / 8 % 4), body.size() - at));
  }
}

}  // namespace

void read(std::string_view input) {
  static const std::vector<JournalPart> sound = sound_journal();
  std::string file(input.substr(std::min<size_t>(input.size(), 1)));
  if (input.starts_with('\1')) {
    Bytes bytes(file);
    std::vector<JournalPart> parts = sound;
    while (!bytes.empty()) change(parts, bytes);
    file = journal_of(parts);
  }
  const std::string path = write("x.journal", file);
  read_kept_result(path);
  can_keep_result(path);
  const auto trace = open_trace(path);
  if (!trace->complete() && trace->problems().empty()) wrong("a trace is incomplete, and silent");
  for (int i = 0; i < trace->passes(); ++i) trace->read(i, true);
}

}  // namespace lockstep::fuzz
