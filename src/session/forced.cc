// Tokens of another run for the requests of this one: a request is found by its name or number
// where the prompt is the same, a nameless one also by its prompt, and one that fits none is an
// error, since a wrong text would be forced without a word.
#include "src/session/forced.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "kernels/base/check.h"
#include "src/report/report.h"
#include "traces/trace.h"

namespace lockstep {
namespace {

// A request of another run, and what became of it.
struct Served {
  int32_t id = 0;
  std::string name;
  std::vector<int32_t> prompt, tokens;
};

// The requests of a trace, or of a result in JSON.
std::vector<Served> served_in(const std::string& path) {
  std::vector<Served> served;
  const auto take = [&](const auto& requests) {
    for (const auto& r : requests) served.push_back({r.id, r.name, r.prompt, r.tokens});
  };
  if (!path.ends_with(".json")) {
    take(open_trace(path)->manifest().requests);
    return served;
  }
  std::ifstream file(path);
  check(file.good(), "--force-from {} cannot be read: give a trace, or the result of a run as JSON",
        path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  take(result_from_json(text, path).requests);
  return served;
}

std::string name_of(const Request& request, size_t number) {
  return request.name.empty() ? fmt::format("request {}", number)
                              : fmt::format("request \"{}\"", request.name);
}

// The request of the other run that is this one.
const Served& same_request(const std::vector<Served>& served, const Request& request, size_t number,
                           const std::string& path) {
  const auto named = [&](const Served& s) {
    return request.name.empty() ? s.name.empty() : s.name == request.name;
  };
  const Served* other = nullptr;  // of that name or number, with another prompt
  for (const Served& s : served)
    if (named(s) && (!request.name.empty() || s.id == static_cast<int32_t>(number))) {
      if (s.prompt == request.prompt) return s;
      other = &s;
    }
  for (const Served& s : served)
    if (request.name.empty() && named(s) && s.prompt == request.prompt) return s;
  check(other != nullptr, "--force-from {} has no {}: give a trace or result of these requests",
        path, name_of(request, number));
  fail(
      "--force-from {} has {} with another prompt ({} tokens, here {}): give a trace or result of "
      "these requests",
      path, name_of(request, number), other->prompt.size(), request.prompt.size());
}

}  // namespace

void force_from(const std::string& path, std::vector<Request>& requests) {
  const std::vector<Served> served = served_in(path);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    const std::string name = name_of(request, i);
    check(request.forced.empty(),
          "--force-from {} was found with {}, which is forced already: "
          "leave one of both out",
          path, name);
    check(request.samples == 1,
          "--force-from {} gives {} one text, but it asks for {}: ask for one", path, name,
          request.samples);
    const Served& same = same_request(served, request, i, path);
    check(!same.tokens.empty(),
          "--force-from {} has no tokens of {}, as that run did not end: give one that did", path,
          name);
    // The last one was chosen and never fed.
    request.forced.assign(same.tokens.begin(), same.tokens.end() - 1);
    request.max_new = std::ssize(same.tokens);
  }
}

}  // namespace lockstep
