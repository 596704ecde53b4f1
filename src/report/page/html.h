// Writes HTML, and SVG within it, in which every text and every value of an attribute is escaped.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace lockstep {

// The text as it may stand between tags and in quotes: & < > " ' are entities, and a byte that is
// no UTF-8, or a control character that HTML does not know, is a replacement character.
std::string html_escaped(std::string_view text);

// Elements must be closed in the opposite order in which they were opened, which scopes do. It
// grows one string and throws nothing of its own.
class Html {
 public:
  struct Attribute {
    std::string_view name, value;
  };
  using Attributes = std::initializer_list<Attribute>;

  // An element that was opened; it closes when its scope ends.
  class Element {
   public:
    ~Element();
    Element(const Element&) = delete;
    Element& operator=(const Element&) = delete;

   private:
    friend class Html;
    Element(Html& html, std::string_view tag) : html_(html), tag_(tag) {}
    Html& html_;
    std::string_view tag_;
  };

  // tag: a literal, which the element keeps.
  [[nodiscard]] Element open(std::string_view tag, Attributes attributes = {});
  void leaf(std::string_view tag, std::string_view text, Attributes attributes = {});
  // An element that has no inside: <meta>, <path>.
  void single(std::string_view tag, Attributes attributes);
  void text(std::string_view text) { out_ += html_escaped(text); }
  void doctype() { out_ += "<!doctype html>\n"; }
  // They are ours, and written as they are.
  void style(std::string_view css);
  void script(std::string_view code);
  // Data for programs, without blanks between its parts. It can end no element: a "<" in it is
  // "\u003c", which is the same JSON.
  void json(std::string_view id, std::string_view json);

  // The text so far, which the writer keeps.
  const std::string& done() const { return out_; }

 private:
  void start(std::string_view tag, Attributes attributes, std::string_view end);

  std::string out_;
};

}  // namespace lockstep
