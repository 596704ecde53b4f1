#include "tools/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "src/report/output.h"

namespace lockstep {
namespace {

// The nearest option of the command, for an argument that it does not know.
std::string nearest_option(const CLI::App& app, const std::string& argument) {
  std::vector<std::string> owned;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) owned.push_back("--" + name);
  return nearest(argument.substr(0, argument.find('=')),
                 std::vector<std::string_view>(owned.begin(), owned.end()));
}

[[noreturn]] void fail_on_extras(CLI::App& app) {
  const std::vector<std::string> extras = app.remaining();
  const std::string& first = extras.front();
  check(!first.starts_with("-"), "{} has no option {}; did you mean {}? `{} --help` lists them",
        app.get_name(), first, nearest_option(app, first), app.get_name());
  fail("{} does not know what \"{}\" is for; `{} --help` says what it takes", app.get_name(), first,
       app.get_name());
}

// CLI11 takes a number that begins with 0 for an octal one.
std::string decimal(std::string text) {
  while (text.size() > 1 && text[0] == '0') text.erase(0, 1);
  return text;
}

CLI::Option* add_count(CLI::App& app, const std::string& name, auto& value, int64_t least,
                       const std::string& help) {
  using Value = std::remove_reference_t<decltype(value)>;
  return app.add_option(name, value, help)
      ->type_name("N")
      ->transform(decimal)
      ->check([least](const std::string& text) {
        int64_t number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool fits = error == std::errc() && end == text.data() + text.size() &&
                          number >= least && std::in_range<Value>(number);
        return fits ? std::string()
                    : fmt::format("a whole number of at least {} is wanted, found \"{}\"", least,
                                  text);
      });
}

// An empty text, as of a shell variable that is not set, would ask for what leaving the option out
// asks for. A text for a model is one, and its own command minds it.
void check_no_empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    check(option->get_type_name() == "TEXT" || std::ranges::count(option->results(), "") == 0,
          "{}: {} wants a value, found an empty one; leave it out to have what it is by default",
          app.get_name(), option->get_name());
}

// A check of a value: that it is one of `choices`.
std::function<std::string(const std::string&)> one_of(std::vector<std::string> choices) {
  return [choices = std::move(choices)](const std::string& text) {
    return std::ranges::find(choices, text) != choices.end()
               ? std::string()
               : fmt::format("one of {} is wanted, found \"{}\"", CLI::detail::join(choices, "|"),
                             text);
  };
}

}  // namespace

bool parse(CLI::App& app, Args args, const std::string& examples) {
  app.description(app.get_description() + "\n");
  app.footer("Examples:\n" + examples);
  app.set_help_flag("-h,--help", "print this help");
  app.get_formatter()->column_width(30);
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // as CLI11 wants them
  // CLI11 says by exceptions what is no exception to us; none of them leaves this function.
  try {
    app.parse(std::move(reversed));
    check_no_empty_value(app);
    return true;
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    // A misspelt option is also one that is missing, and the misspelling says more.
    if (app.remaining_size() > 0) fail_on_extras(app);
    fail("{}: {}; `{} --help` says what it takes", app.get_name(), error.what(), app.get_name());
  }
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        std::vector<std::string> choices, const std::string& help) {
  const std::string all = CLI::detail::join(choices, "|");
  return app.add_option(name, value, help)->type_name(all)->check(one_of(std::move(choices)));
}

void add_threads_option(CLI::App& app, int& threads) {
  add_count(app, "--threads", threads, 0, "threads that compute (0: one a core)");
}

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "where the engine runs (cpu)")->type_name("cpu|cuda[:N]");
}

void add_model_folder(CLI::App& app, std::string& model) {
  app.add_option("--model", model, "checkpoint: config.json, *.safetensors, tokenizer.json")
      ->type_name("DIR")
      ->required();
}

namespace {

// The options of what is asked of the model.
void add_request_options(CLI::App& app, ModelOptions& options) {
  const auto repeatable = [&](const char* name, auto& value, const char* help, const char* type) {
    app.add_option(name, value, help)->type_name(type)->allow_extra_args(false);
  };
  repeatable("--prompt", options.prompts, "a request with this text (repeatable)", "TEXT");
  repeatable("--tokens", options.tokens, "a request with these token ids (repeatable)", "1,2,3");
  app.add_option("--requests", options.requests,
                 "requests, a JSON object a line: \"prompt\", \"tokens\" or \"messages\", and "
                 "\"id\", \"max_new\", \"temperature\", \"top_k\", \"top_p\", \"min_p\", "
                 "\"repetition_penalty\", \"seed\", \"stop\", \"n\" (samples), \"arrival\" "
                 "(a step), \"force\" (token ids)")
      ->type_name("FILE.jsonl");
  app.add_flag("--chat", options.chat, "prompts are what a user says to a chat model (ChatML)");
  add_count(app, "--max-new", options.max_new, 1, "tokens to generate for a request (16)");
  CLI::Option* force = app.add_option("--force", options.force,
                                      "decode exactly these token ids instead of its choices");
  force->type_name("5,6,7");
  app.add_option("--force-from", options.force_from,
                 "decode the tokens that the same requests got in this trace or result (.json)")
      ->type_name("PATH")
      ->excludes(force);
  repeatable("--stop", options.stop, "a text ends before this in it (repeatable)", "TEXT");
  app.add_flag("--ignore-eos", options.ignore_eos, "go on after a token that ends the text");
}

// How a token is chosen.
void add_sampling_options(CLI::App& app, ModelOptions& options) {
  Sampling& sampling = options.sampling;
  const auto number = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)->type_name("X");
  };
  number("--temperature", sampling.temperature,
         "draw tokens, the logits divided by this (0: take the most likely)");
  add_count(app, "--top-k", sampling.top_k, 0, "draw among that many tokens (0: all)");
  number("--top-p", sampling.top_p, "draw among the fewest that together are that likely (1)");
  number("--min-p", sampling.min_p, "and at least that likely, in units of the most likely (0)");
  number("--repetition-penalty", sampling.repetition_penalty,
         "over 1: tokens that the text has already become less likely (1)");
  add_count(app, "--seed", sampling.seed, 0, "of what is drawn (0)");
  add_count(app, "--samples", options.samples, 1, "texts to make of each request (1)");
}

std::string flag_of(const auto& option) { return std::string("--") + option.name; }

void add_engine_option(CLI::App& app, const EngineOption<bool, 2>& option, bool& value) {
  app.add_flag(flag_of(option), value, option.help);
}

void add_engine_option(CLI::App& app, const EngineOption<Preempt, 2>& option, Preempt& value) {
  const auto read = [&value](const std::string& text) {
    value = text == kPreempts[1] ? Preempt::swap : Preempt::recompute;
  };
  app.add_option_function<std::string>(flag_of(option), read, option.help)
      ->type_name(CLI::detail::join(kPreempts, "|"))
      ->check(one_of({kPreempts.begin(), kPreempts.end()}));
}

template <class T, size_t N>
void add_engine_option(CLI::App& app, const EngineOption<T, N>& option, T& value) {
  add_count(app, flag_of(option), value, option.least, option.help);
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_model_folder(app, options.model);
  add_request_options(app, options);
  add_sampling_options(app, options);
  add_device_option(app, options.device);
  add_choice(app, "--graph", options.graph, {"on", "off"},
             "decode passes are replayed as CUDA graphs (on with --device cuda, unless ops are "
             "changed, as by --fault)");
  app.add_option("--ops", options.ops,
                 "a shared library of your ops, used in the place of the engine's "
                 "(kernels/lockstep_ops.h)")
      ->type_name("LIB.so");
  add_choice(app, "--dtype", options.dtype, {"auto", "fp32", "bf16", "fp16"},
             "of weights, activations and cache (auto: the checkpoint's)");
  for_each_engine_option(
      [&](const auto& option) { add_engine_option(app, option, options.engine.*option.member); });
}

void add_logprobs_option(CLI::App& app, ModelOptions& options) {
  add_count(app, "--logprobs", options.sampling.logprobs, 0,
            "show that many of the most likely tokens at each choice (0)");
}

void add_selection_options(CLI::App& app, ObserveOptions& options) {
  app.add_option("--points", options.points, "look at these points only (all)")
      ->type_name("GLOB,...");
  app.add_option("--layers", options.layers, "look at these layers only (all)")->type_name("0,3-5");
  app.add_option("--positions", options.positions, "look at these positions only (all)")
      ->type_name("0-31");
}

void add_observe_options(CLI::App& app, ObserveOptions& options) {
  const CLI::Option* keep =
      add_choice(app, "--keep", options.keep, {"off", "digest", "flagged", "full"},
                 "what a trace keeps: digests, and the tensors of what is wrong or all (" +
                     options.keep + "; .jsonl: digest)");
  add_selection_options(app, options);
  CLI::Option* trace = app.add_option("--trace", options.trace, "keep what was seen in this trace");
  trace->type_name("PATH.trace");
  app.parse_complete_callback([&options, keep] {
    // A journal alone has no tensors.
    if (keep->count() == 0 && options.trace.ends_with(".jsonl")) options.keep = "digest";
  });
  app.add_option("--record-before", options.record_before,
                 "before an op of these points is launched, have its inputs on the disk, in "
                 "PATH.before.h5: they stay when it does not come back")
      ->type_name("GLOB,...")
      ->needs(trace);
}

void add_limits_option(CLI::App& app, std::string& limits) {
  app.add_option("--limits", limits, "limits of lockstep calibrate (those of theory alone)")
      ->type_name("FILE");
}

void add_schema_option(CLI::App& app, std::string& schema) {
  add_choice(app, "--schema", schema, {"fused", "hf", "eager", "auto"},
             "where ops round inside: once at the store, as the modules of Hugging Face, scores "
             "too, or found by trying (what the trace says)");
}

void add_accumulator_option(CLI::App& app, std::string& accumulator) {
  add_choice(app, "--accumulator", accumulator, {"fp32", "tf32"},
             "how linear ops of an fp32 run sum: their operands as they are, or rounded to tf32 "
             "(what the trace says)");
}

void add_fault_option(CLI::App& app, std::vector<std::string>& faults) {
  app.add_option("--fault", faults, "seed a bug into the engine (repeatable; see lockstep faults)")
      ->type_name("NAME[@layer=L]")
      ->allow_extra_args(false);
}

void add_format_option(CLI::App& app, std::string& format) {
  add_choice(app, "--format", format, format_names(), "how the result is printed (table)");
}

void add_report_options(CLI::App& app, ReportOptions& options) {
  add_format_option(app, options.format);
  app.add_option("--json", options.json, "write the result to this file too, as JSON")
      ->type_name("FILE");
  app.add_option("--markdown", options.markdown, "and to this one, as Markdown")->type_name("FILE");
  app.add_option("--html", options.html, "and to this one, as a page for people")
      ->type_name("FILE");
}

void add_result_options(CLI::App& app, ReportOptions& options) {
  add_report_options(app, options);
  app.add_option("--junit", options.junit, "and to this one, as JUnit's XML: a test an op class")
      ->type_name("FILE");
}

}  // namespace lockstep
