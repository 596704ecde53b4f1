// The records of a journal, to be changed and put together again with checksums that are right.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "traces/journal_format.h"

namespace lockstep {

struct JournalPart {
  JournalKind kind{};
  std::string body;

  template <typename T>
  void set(size_t at, T value) {
    std::memcpy(&body.at(at), &value, sizeof value);
  }
};

// Of a journal that is whole.
inline std::vector<JournalPart> journal_parts(const std::string& bytes) {
  std::vector<JournalPart> parts;
  for (size_t at = sizeof(JournalHead); at < bytes.size();) {
    RecordHead head;
    std::memcpy(&head, &bytes.at(at), sizeof head);
    parts.push_back({head.kind, bytes.substr(at + sizeof head, head.bytes)});
    at += sizeof head + head.bytes;
  }
  return parts;
}

// Where each record begins, and the end.
inline std::vector<size_t> journal_places(const std::string& bytes) {
  std::vector<size_t> places = {sizeof(JournalHead)};
  for (const JournalPart& part : journal_parts(bytes))
    places.push_back(places.back() + sizeof(RecordHead) + part.body.size());
  return places;
}

inline std::string journal_of(const std::vector<JournalPart>& parts) {
  JournalHead head;
  kJournalMagic.copy(head.magic, sizeof head.magic);
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  uint64_t before = 0;
  for (const JournalPart& part : parts) {
    const std::string record = journal_record(part.kind, part.body, before);
    std::memcpy(&before, record.data(), sizeof before);
    bytes += record;
  }
  return bytes;
}

}  // namespace lockstep
