// The only place that puts text into HTML. Text and attribute values pass through html_escaped(),
// tags are literals of this program, and an Element closes its tag when its scope ends: a page can
// be cut short by an exception and not by a forgotten end tag.
#include "src/report/page/html.h"

#include <cstdint>

#include "kernels/base/utf8.h"

namespace lockstep {
namespace {

// The bytes of the UTF-8 sequence that begins there; 0: it is none.
size_t sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return byte_of(text[i]); };
  const uint8_t lead = byte(at);
  const size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  // A second byte alone can tell an encoding that is too long (a lead of e0 or f0), a surrogate
  // (ed) or a number beyond U+10FFFF (f4): Unicode, table 3-7.
  if (length < 3) return length;
  const uint8_t second = byte(at + 1);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool outside = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || outside ? 0 : length;
}

bool is_control(char c) {
  const uint8_t byte = byte_of(c);
  return byte == 0x7f || (byte < 0x20 && c != '\n' && c != '\t');
}

}  // namespace

// For text and for attributes alike. Bytes that are no UTF-8 and control characters become U+FFFD:
// names come from files.
std::string html_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t length = sequence_at(text, at);
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else if (length == 0 || is_control(c)) {
      out += kReplacement;
    } else {
      out += text.substr(at, length);
    }
    at += length == 0 ? 1 : length;
  }
  return out;
}

Html::Element::~Element() {
  html_.out_ += "</";
  html_.out_ += tag_;
  html_.out_ += ">\n";
}

void Html::start(std::string_view tag, Attributes attributes, std::string_view end) {
  out_ += '<';
  out_ += tag;
  for (const Html::Attribute& attribute : attributes) {
    out_ += ' ';
    out_ += attribute.name;
    out_ += "=\"";
    out_ += html_escaped(attribute.value);
    out_ += '"';
  }
  out_ += end;
}

Html::Element Html::open(std::string_view tag, Attributes attributes) {
  start(tag, attributes, ">");
  return {*this, tag};
}

void Html::leaf(std::string_view tag, std::string_view text_, Attributes attributes) {
  const Element element = open(tag, attributes);
  text(text_);
}

void Html::single(std::string_view tag, Attributes attributes) { start(tag, attributes, "/>\n"); }

void Html::style(std::string_view css) {
  const Element element = open("style");
  out_ += css;
}

void Html::script(std::string_view code) {
  const Element element = open("script");
  out_ += code;
}

// No < is left, so that nothing in the data can end the element; spaces between tokens go, as a
// third of a long result is indentation.
void Html::json(std::string_view id, std::string_view json) {
  const Element element = open("script", {{"type", "application/json"}, {"id", id}});
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') in_string = !in_string;
    // A backslash takes the next character along, so that an escaped quote does not end the string.
    if (in_string && c == '\\') {
      out_ += json.substr(i++, 2);
    } else if (c == '<') {
      out_ += "\\u003c";
    } else if (in_string || (c != ' ' && c != '\n')) {
      out_ += c;
    }
  }
}

}  // namespace lockstep
