// Parses a command line, and describes its options as data (CommandPage), of which the help, the
// completions and the man page are made.
#include "tools/parse.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iterator>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "probes/points.h"
#include "src/faults/faults.h"
#include "src/help/glossary.h"
#include "src/help/help_text.h"
#include "src/report/output.h"
#include "src/screen/screen.h"
#include "src/session/modes.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;
using Completion = CommandPage::Option::Completion;

Words names_of(const auto& rows) {
  Words names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

// The completions of a value, by what stands for it in the help. To add a kind: its row.
struct ValueKind {
  std::string_view value;
  Completion completion;
  Words (*words)();
};
constexpr auto kValueKinds = std::to_array<ValueKind>({
    {"DIR", Completion::folders, nullptr},
    {"FILE", Completion::files, nullptr},
    {"FILE.jsonl", Completion::files, nullptr},
    {"LIB.so|FILE.py", Completion::files, nullptr},
    {"PATH.trace", Completion::files, nullptr},
    {"TRACE", Completion::files, nullptr},
    {"cpu|cuda[:N]", Completion::words,
     [] {
       return Words{"cpu", "cuda"};
     }},
    {"GLOB,...", Completion::list, [] { return names_of(kPoints); }},
    {"NAME[@layer=L]", Completion::words, [] { return names_of(faults()); }},
    {"MODE,...|all", Completion::list,
     [] {
       Words words = names_of(modes());
       words.emplace_back("all");
       return words;
     }},
    {"WORD", Completion::words,
     [] {
       Words words = names_of(glossary());
       std::ranges::for_each(words, [](std::string& w) { std::ranges::replace(w, ' ', '_'); });
       return words;
     }},
    {"COMMAND|WORD", Completion::words, [] { return names_of(commands()); }},
});

void describe_value(CommandPage::Option& option) {
  const auto kind = std::ranges::find(kValueKinds, option.value, &ValueKind::value);
  if (kind != kValueKinds.end()) {
    option.completion = kind->completion;
    if (kind->words) option.words = kind->words();
  } else if (option.value.find('|') != std::string::npos) {
    option.completion = Completion::words;
    option.words = CLI::detail::split(option.value, '|');
  }
}

CommandPage::Option page_of(const CLI::Option& option) {
  CommandPage::Option page{.group = option.get_group(), .help = option.get_description()};
  page.required = option.get_required();
  page.repeatable = option.get_items_expected_max() > 1;
  if (option.get_items_expected_max() > 0) page.value = option.get_type_name();
  for (CLI::Option* other : option.get_needs())
    page.help += fmt::format(" (needs {})", other->get_name());
  if (option.get_positional()) {
    page.group = "Arguments";
    page.name = option.get_name(/*positional=*/true);
  } else {
    const std::vector<std::string>&longs = option.get_lnames(), &shorts = option.get_snames();
    page.name = "--" + longs.front();
    if (!shorts.empty()) page.short_name = "-" + shorts.front();
    for (size_t i = 1; i < longs.size(); ++i) page.also.push_back("--" + longs[i]);
  }
  describe_value(page);
  return page;
}

CommandPage page_of(const CLI::App& app, const std::string& examples) {
  CommandPage page{.name = app.get_name().substr(app.get_name().find(' ') + 1),
                   .about = app.get_description()};
  for (const CLI::Option* option : app.get_options()) page.options.push_back(page_of(*option));
  std::stable_partition(page.options.begin(), page.options.end(),
                        [](const CommandPage::Option& option) { return option.is_argument(); });
  for (const std::string& line : CLI::detail::split(examples, '\n'))
    if (!line.empty()) page.examples.push_back(CLI::detail::trim_copy(line));
  return page;
}

// The end of a sentence about an argument that the command does not know.
std::string nearest_option(const CLI::App& app, const std::string& argument) {
  std::vector<std::string> owned;
  for (const CLI::Option* option : app.get_options())
    if (!option->get_lnames().empty()) owned.push_back(option->get_lnames().front());
  const std::string name = argument.substr(0, argument.find('='));
  const std::string_view known =
      nearest(std::string_view(name).substr(std::min(name.find_first_not_of('-'), name.size())),
              std::vector<std::string_view>(owned.begin(), owned.end()));
  return known.empty() ? "" : fmt::format("; did you mean --{}?", known);
}

// `-model DIR` reads as -m with the value "odel", and it is DIR that nobody wants then.
void check_dashes(const CLI::App& app, Args args) {
  for (const std::string word : args)
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames())
        check(name.size() == 1 || word.substr(0, word.find('=')) != "-" + name,
              "{} has no option -{}: it is spelt --{}", app.get_name(), name, name);
}

[[noreturn]] void fail_on_extras(const CLI::App& app, Args args) {
  check_dashes(app, args);
  const std::string first = app.remaining().front();
  check(!first.starts_with("-"), "{} has no option {}{} (`{} --help` lists them)", app.get_name(),
        first, nearest_option(app, first), app.get_name());
  fail("{} does not know what \"{}\" is for; `{} --help` says what it takes", app.get_name(), first,
       app.get_name());
}

// An empty text, as of a shell variable that is not set, would ask for what leaving the option out
// asks for. A text for a model is one, and its own command minds it.
void check_no_empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    check(option->get_type_name() == "TEXT" || std::ranges::count(option->results(), "") == 0,
          "{}: {} wants a value, found an empty one{}", app.get_name(), option->get_name(),
          option->get_required() ? "" : "; leave it out to have what it is by default");
}

}  // namespace

bool parse(CLI::App& app, Args args, const std::string& examples) {
  app.set_help_flag("-h,--help", "print this help")->group("Help");
  if (args.page) {
    *args.page = page_of(app, examples);
    return false;
  }
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // as CLI11 wants them
  // CLI11 says by exceptions what is no exception to us; none of them leaves this function.
  try {
    app.parse(std::move(reversed));
    check_no_empty_value(app);
    return true;
  } catch (const CLI::CallForHelp&) {
    print(help_text(page_of(app, examples), screen_of(STDOUT_FILENO).prose_width()));
    return false;
  } catch (const CLI::Success&) {
    return false;
  } catch (const CLI::ParseError& error) {
    // A misspelt option is also one that is missing, and the misspelling says more.
    if (app.remaining_size() > 0) fail_on_extras(app, args);
    fail("{}: {}; `{} --help` says what it takes", app.get_name(), error.what(), app.get_name());
  }
}

void begin_group(CLI::App& app, const char* heading) { app.option_defaults()->group(heading); }

void add_explain_option(CLI::App& app) {
  begin_group(app, "Help");
  const auto explain = [](const std::string& word) {
    print(explanation_of(word, screen_of(STDOUT_FILENO).prose_width()));
    // Ends the parse, and with it the command, as --help does.
    throw CLI::Success();
  };
  app.add_option_function<std::string>("--explain", explain,
                                       "say what a word of the screens means, such as T1 or budget")
      ->type_name("WORD");
}

}  // namespace lockstep
