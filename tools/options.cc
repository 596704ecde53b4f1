// The options that several commands have, each bound to a field of src/session. A value is checked
// as it is parsed, so that a bad one is refused with a sentence before anything is opened.
#include "tools/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "src/help/number_check.h"
#include "src/judge/presets.h"
#include "src/report/output.h"

namespace lockstep {
namespace {

// The whole number that all of `text` is; `text` has been checked.
template <class Value>
Value number_of(const std::string& text) {
  Value value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// The text is checked against the range of the number that it is bound to.
CLI::Option* add_count(CLI::App& app, const std::string& name, auto& value, int64_t least,
                       const std::string& help) {
  using Value = std::remove_reference_t<decltype(value)>;
  const auto read = [&value](const std::string& text) { value = number_of<Value>(text); };
  const int64_t most = std::min<uint64_t>(std::numeric_limits<Value>::max(), INT64_MAX);
  return app.add_option_function<std::string>(name, read, help)
      ->type_name("N")
      ->check(whole_number(least, most));
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

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        std::vector<std::string> choices, const std::string& help) {
  const std::string all = CLI::detail::join(choices, "|");
  return app.add_option(name, value, help)->type_name(all)->check(one_of(std::move(choices)));
}

void add_threads_option(CLI::App& app, int& threads) {
  add_count(app, "--threads", threads, 0, "threads that compute (0: one a core)");
}

void add_device_option(CLI::App& app, std::string& device) {
  app.add_option("-d,--device", device, "where the engine runs (cpu)")->type_name("cpu|cuda[:N]");
}

void add_ops_option(CLI::App& app, std::string& ops) {
  app.add_option("--ops", ops,
                 "your ops, used in the place of the engine's: a shared library "
                 "(kernels/lockstep_ops.h), or functions in a Python file")
      ->type_name("LIB.so|FILE.py");
}

void add_place_options(CLI::App& app, ReplayOptions& options) {
  begin_group(app, "Place");
  app.add_option("--point,--points", options.point, "the op, by the point that shows its result")
      ->type_name("POINT");
  add_count(app, "--layer,--layers", options.layer, 0, "of that layer, for points of layers");
  app.add_option("--requests,--request", options.requests, "these requests only (all)")
      ->type_name("0,3-5");
  app.add_option("--positions,--position", options.positions, "these positions only (all)")
      ->type_name("0-31");
}

void add_model_folder(CLI::App& app, std::string& model, bool required) {
  begin_group(app, "Model");
  app.add_option("-m,--model", model, "checkpoint: config.json, *.safetensors, tokenizer.json")
      ->type_name("DIR")
      ->required(required);
}

namespace {

// The options of the model and of what computes it.
void add_computing_options(CLI::App& app, ModelOptions& options) {
  add_model_folder(app, options.model);
  add_device_option(app, options.device);
  add_choice(app, "--dtype", options.dtype, {"auto", "fp32", "bf16", "fp16"},
             "of weights, activations and cache (auto: the checkpoint's)");
  add_ops_option(app, options.ops);
  add_choice(app, "--graph", options.graph, {"on", "off"},
             "decode passes are replayed as CUDA graphs (on with --device cuda, unless ops are "
             "changed, as by --fault)");
}

// The options of a schedule's instructions.
void add_instruction_options(CLI::App& app, InstructionOptions& options) {
  begin_group(app, "Instructions");
  add_choice(app, "--executor", options.executor, {"ops", "instructions", "persistent"},
             "compute a pass op by op, as the instructions of a schedule, or a decode step in one "
             "launch on a GPU (ops)");
  add_count(app, "--queues", options.queues, 1, "queues of a schedule that is made (4)");
  app.add_option("--step", options.step, "a schedule of yours, as lockstep schedule writes one")
      ->type_name("FILE");
  app.add_option("--interleave", options.interleave,
                 "run one random order that the counters allow, or the \"adversarial\" (threads)")
      ->type_name("SEED");
  app.add_option("--timeline", options.timeline, "write what the last step did when, for Perfetto")
      ->type_name("FILE");
}

// The options of what is asked of the model.
void add_request_options(CLI::App& app, ModelOptions& options) {
  begin_group(app, "Requests");
  const auto repeatable = [&](const char* name, auto& value, const char* help, const char* type) {
    app.add_option(name, value, help)->type_name(type)->allow_extra_args(false);
  };
  repeatable("-p,--prompt,--prompts", options.prompts, "a request with this text", "TEXT");
  add_count(app, "-n,--max-new", options.max_new, 1, "tokens to generate for a request (16)");
  app.add_option("--requests", options.requests,
                 "requests, a JSON object a line: \"prompt\", \"tokens\" or \"messages\", and "
                 "\"id\", \"max_new\", \"temperature\", \"top_k\", \"top_p\", \"min_p\", "
                 "\"repetition_penalty\", \"seed\", \"stop\", \"n\" (samples), \"arrival\" "
                 "(a step), \"force\" (token ids)")
      ->type_name("FILE.jsonl");
  repeatable("--tokens,--token", options.tokens, "a request with these token ids", "1,2,3");
  app.add_flag("--chat", options.chat, "prompts are what a user says to a chat model (ChatML)");
  CLI::Option* force = app.add_option("--force", options.force,
                                      "decode exactly these token ids instead of its choices");
  force->type_name("5,6,7");
  app.add_option("--force-from", options.force_from,
                 "decode the tokens that the same requests got in this trace or result (.json)")
      ->type_name("PATH")
      ->excludes(force);
  repeatable("--stop,--stops", options.stop, "a text ends before this in it", "TEXT");
  app.add_flag("--ignore-eos", options.ignore_eos, "go on after a token that ends the text");
}

// How a token is chosen.
void add_sampling_options(CLI::App& app, ModelOptions& options) {
  begin_group(app, "Sampling");
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
  add_count(app, "--samples,--sample", options.samples, 1, "texts to make of each request (1)");
}

std::string flag_of(const auto& option) { return std::string("--") + option.name; }

// One overload a type: an option of serving is a row of kEngineOptions, and its flag follows from
// the type of its member.
void add_engine_option(CLI::App& app, const EngineOption<bool, 2>& option, bool& value) {
  app.add_flag(flag_of(option), value, option.help);
}

void add_engine_option(CLI::App& app, const EngineOption<Preempt, 2>& option, Preempt& value) {
  const auto read = [&value](const std::string& text) {
    value = value_named<Preempt>(text, "way to preempt");
  };
  app.add_option_function<std::string>(flag_of(option), read, option.help)
      ->type_name(CLI::detail::join(kNamesOf<Preempt>, "|"))
      ->check(one_of({kNamesOf<Preempt>.begin(), kNamesOf<Preempt>.end()}));
}

template <class T, size_t N>
void add_engine_option(CLI::App& app, const EngineOption<T, N>& option, T& value) {
  add_count(app, flag_of(option), value, option.least, option.help);
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_computing_options(app, options);
  add_request_options(app, options);
  add_sampling_options(app, options);
  begin_group(app, "Serving");
  for_each_engine_option(
      [&](const auto& option) { add_engine_option(app, option, options.engine.*option.member); });
  add_instruction_options(app, options.instructions);
}

void add_logprobs_option(CLI::App& app, ModelOptions& options) {
  begin_group(app, "Sampling");
  add_count(app, "--logprobs", options.sampling.logprobs, 0,
            "show that many of the most likely tokens at each choice (0)");
}

void add_selection_options(CLI::App& app, std::string& points, std::string& layers,
                           std::string& positions) {
  begin_group(app, "Observe");
  app.add_option("--points,--point", points, "look at these points only (all)")
      ->type_name("GLOB,...");
  app.add_option("--layers,--layer", layers, "look at these layers only (all)")->type_name("0,3-5");
  app.add_option("--positions,--position", positions, "look at these positions only (all)")
      ->type_name("0-31");
}

void add_selection_options(CLI::App& app, ObserveOptions& options) {
  add_selection_options(app, options.points, options.layers, options.positions);
}

void add_observe_options(CLI::App& app, ObserveOptions& options) {
  begin_group(app, "Observe");
  CLI::Option* trace = app.add_option("--trace", options.trace, "keep what was seen in this trace");
  trace->type_name("PATH.trace");
  const CLI::Option* keep =
      add_choice(app, "--keep", options.keep, {"digest", "flagged", "full"},
                 "what a trace keeps: digests, and the tensors of what is wrong or all (" +
                     options.keep + "; .journal: digest)")
          ->needs(trace);
  add_selection_options(app, options);
  app.parse_complete_callback([&options, keep] {
    // A journal alone has no tensors.
    if (keep->count() == 0 && options.trace.ends_with(".journal")) options.keep = "digest";
  });
  app.add_option("--record-before", options.record_before,
                 "before an op of these points is launched, have its inputs on the disk, in "
                 "PATH.before.h5: they stay when it does not come back")
      ->type_name("GLOB,...")
      ->needs(trace);
}

void add_limits_option(CLI::App& app, std::string& limits) {
  begin_group(app, "Judge");
  app.add_option("--limits,--limit", limits, "limits of lockstep calibrate (those of theory alone)")
      ->type_name("FILE");
}

void add_rounding_options(CLI::App& app, RoundingOptions& options) {
  begin_group(app, "Judge");
  std::vector<std::string> names;
  std::string help = "where ops round inside, by engine (what the trace says)";
  // The help lists the engines from their table, so that a new row of it is all that a new one
  // needs.
  for (const Preset& preset : presets()) {
    names.emplace_back(preset.name);
    help += fmt::format("\n{}: {}", preset.name, preset.says);
  }
  names.emplace_back("auto");
  help += "\nauto: found by trying";
  add_choice(app, "--schema", options.schema, names, help);
  app.add_option("--rounding", options.rounding,
                 "where the op of these points rounds, over --schema or what the trace says, such "
                 "as attn.norm=hf (see traces/README.md for the contracts)")
      ->type_name("POINT=CONTRACT")
      ->allow_extra_args(false);
}

void add_accumulator_option(CLI::App& app, std::string& accumulator) {
  begin_group(app, "Judge");
  add_choice(app, "--accumulator", accumulator, {"fp32", "tf32"},
             "how linear ops of an fp32 run sum: their operands as they are, or rounded to tf32 "
             "(what the trace says)");
}

void add_rope_pairs_option(CLI::App& app, std::string& pairs) {
  begin_group(app, "Judge");
  add_choice(app, "--rope-pairs", pairs, {"half", "interleaved"},
             "how the trace holds the pairs of Q and K that RoPE turns: half a head apart, or "
             "beside each other (what the trace says)");
}

void add_fault_option(CLI::App& app, std::vector<std::string>& faults) {
  begin_group(app, "Judge");
  app.add_option("--fault,--faults", faults, "seed a bug into the engine (see lockstep faults)")
      ->type_name("NAME[@layer=L]")
      ->allow_extra_args(false);
}

CLI::Option* add_determinism_option(CLI::App& app, int64_t& repeats) {
  begin_group(app, "Judge");
  return add_count(app, "--determinism", repeats, 2,
                   "no reference: serve each request so often, then in batches, at other places of "
                   "them and by other threads, and say of each op what its bits depend on");
}

void add_judging_options(CLI::App& app, bool& fail_fast, bool& error_budget, std::string& rows) {
  begin_group(app, "Judge");
  app.add_flag("--fail-fast", fail_fast, "stop after the first pass with a finding");
  app.add_option("--judge-rows", rows,
                 "judge that many rows of a node, drawn by a seed (0), and say how likely a bug "
                 "shows in them; no model is computed beside the engine then (all rows)")
      ->type_name("N[:SEED]");
  app.add_flag("--error-budget", error_budget,
               "share out the error of the logits: how much of it each op's own error causes "
               "(keeps every tensor in memory)");
}

void add_format_option(CLI::App& app, std::string& format) {
  begin_group(app, "Output");
  add_choice(app, "--format", format, format_names(), "how the result is printed (table)");
}

void add_report_options(CLI::App& app, ReportOptions& options) {
  add_format_option(app, options.format);
  app.add_option("--json", options.json, "write the result to this file too, as JSON")
      ->type_name("FILE");
  app.add_option("--markdown", options.markdown, "and to this one, as Markdown")->type_name("FILE");
  app.add_option("--html", options.html, "and to this one, as a page for people")
      ->type_name("FILE");
  CLI::Option* quiet = app.add_flag_callback(
      "-q,--quiet", [&options] { options.detail = Detail::verdict; }, "print the verdict alone");
  app.add_flag_callback(
         "-v,--verbose", [&options] { options.detail = Detail::everything; },
         "print all places, findings and what is untested, however many")
      ->excludes(quiet);
  add_explain_option(app);
}

void add_result_options(CLI::App& app, ReportOptions& options) {
  add_report_options(app, options);
  begin_group(app, "Output");
  app.add_option("--junit", options.junit, "and to this one, as JUnit's XML: a test an op class")
      ->type_name("FILE");
}

}  // namespace lockstep
