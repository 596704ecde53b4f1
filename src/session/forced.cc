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

// The last token of a text was chosen and never fed.
std::vector<int32_t> forced_by(const Served& text, const std::string& name,
                               const std::string& path) {
  check(!text.tokens.empty(),
        "--force-from {} has no tokens of {}, as that run did not end: give one that did", path,
        name);
  return {text.tokens.begin(), text.tokens.end() - 1};
}

// The texts of a request after its first, which the engine numbers in the order of the samples. Of
// two requests that are alike nothing tells whose they are.
std::vector<const Served*> further_samples(const std::vector<Served>& served, const Served& first,
                                           const std::vector<Request>& requests, size_t number,
                                           const std::string& path) {
  const Request& request = requests[number];
  if (request.samples == 1) return {};
  const std::string name = name_of(request, number);
  const auto is_alike = [&](const Request& other) {
    return other.name == request.name && other.prompt == request.prompt;
  };
  check(std::ranges::count_if(requests, is_alike) == 1,
        "--force-from {} does not tell which texts are those of {}, as another request has its "
        "prompt: give each a name, as \"id\" of --requests does, in that run too",
        path, name);
  std::vector<const Served*> samples;
  for (const Served& s : served)
    if (&s != &first && s.name == first.name && s.prompt == first.prompt) samples.push_back(&s);
  std::ranges::sort(samples, {}, &Served::id);
  check(std::ssize(samples) + 1 == request.samples,
        "--force-from {} has {} of {}, but it asks for {}: ask for as many", path,
        samples.empty() ? "one text" : fmt::format("{} texts", samples.size() + 1), name,
        request.samples);
  return samples;
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
    const Served& same = same_request(served, request, i, path);
    request.forced = forced_by(same, name, path);
    request.max_new = std::ssize(same.tokens);
    for (const Served* sample : further_samples(served, same, requests, i, path))
      request.forced_samples.push_back(forced_by(*sample, name, path));
  }
}

}  // namespace lockstep
