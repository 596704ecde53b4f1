#include "kernels/base/utf8.h"

#include <cstdint>

namespace lockstep {
namespace {

// Length of a character by its first byte, and the range of its second byte, which excludes
// overlong forms, surrogates and what lies beyond U+10FFFF (Unicode standard, table 3-7).
struct Lead {
  size_t length;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
};

// The lead byte gives the length and the bounds of the second byte, by which overlong forms,
// surrogates and what is past U+10FFFF are told (Unicode, table 3-7).
Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Front utf8_front(std::string_view bytes) {
  Lead lead = lead_of(byte_of(bytes[0]));
  if (lead.length == 0) return {Utf8Front::Kind::broken, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Front::Kind::cut, i};
    const uint8_t byte = byte_of(bytes[i]);
    // The byte that does not fit may begin a character of its own: it is left.
    if (byte < lead.low || byte > lead.high) return {Utf8Front::Kind::broken, i};
    lead.low = 0x80;
    lead.high = 0xBF;
  }
  return {Utf8Front::Kind::whole, lead.length};
}

void take_characters(std::string& bytes, std::string& text) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Front front = utf8_front(std::string_view(bytes).substr(at));
    if (front.kind == Utf8Front::Kind::cut) break;
    if (front.kind == Utf8Front::Kind::whole)
      text.append(bytes, at, front.length);
    else
      text += kReplacement;
    at += front.length;
  }
  bytes.erase(0, at);
}

}  // namespace lockstep
