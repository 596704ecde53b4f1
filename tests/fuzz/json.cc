// Any JSON: every value is asked for all that it could be.
#include "kernels/files/json.h"

#include "kernels/base/check.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

template <typename Ask>
int asked(Ask ask) {
  try {
    ask();
    return 1;
  } catch (const Error&) {
    return 0;
  }
}

void look_at(const JsonValue& value, int depth) {
  int kinds = asked([&] { value.text(); }) + asked([&] { value.flag(); });
  kinds += asked([&] { value.number(); });
  if (kinds > 1) wrong("a value of two kinds");
  asked([&] { value.real(); });
  asked([&] { value.whole<int32_t>(); });
  asked([&] { value.whole<uint64_t>(1); });
  asked([&] { value.whole<int64_t>(-5, 5); });
  asked([&] { value.wholes<int64_t>(); });
  asked([&] { value.texts(); });
  asked([&] { value.text_fields(); });
  asked([&] { value["no such"][7].text(); });
  if (value.said().size() > 1000) wrong("a value is said in " + value.said());
  if (depth > 64) wrong("a document deeper than its limit");
  if (value.is_list())
    for (const JsonValue& item : value.items()) look_at(item, depth + 1);
  if (value.is_object())
    for (const auto& [key, field] : value.fields()) look_at(field, depth + 1);
}

}  // namespace

void read(std::string_view input) {
  const JsonDocument document(input, {.name = "x.json", .remedy = "correct it"});
  // Each sentence seeks its value in the whole document, so that large ones would take long.
  if (input.size() < 400) look_at(document.root(), 1);
  document.root()["a"]["b"][0].number();
}

}  // namespace lockstep::fuzz
