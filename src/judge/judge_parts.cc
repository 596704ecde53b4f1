// A pass, part by part: the models are computed through the part's layer, its K and V are
// remembered, its places are judged in graph order, what they came to is entered, and what of the
// models nothing later reads is let go. So memory holds a layer or two of each model, whatever the
// model's depth; and of a pass that is shown while it is computed, a layer of that too.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "src/judge/cache_read.h"
#include "src/judge/index_choice.h"
#include "src/judge/judge_state.h"
#include "src/judge/top_logits.h"

namespace lockstep {
namespace {

// Row by row, the experts that the engine chose at a layer, where that is what its own logits say:
// both models follow it there, for which of two nearly equal experts is taken is no error. Empty
// where it is not known, or wrong. Where the logits were not recorded they follow it too: whether
// it is wrong is for mlp.experts to say, and no token is to be an error because of it.
TensorView experts_of(const PassView& seen, int layer) {
  const RecordedTensor* chosen = seen.tensor({&point("mlp.experts"), layer}, -1);
  const RecordedTensor* logits = seen.tensor({&point("mlp.router"), layer}, -1);
  if (!chosen || chosen->dtype != DType::i32 || chosen->data.view().empty()) return {};
  if (logits && logits->data.view().empty()) return {};
  NodeRows all;
  for (const PassRow& r : seen.info().rows) all.rows.push_back(r.row);
  if (chosen->rows != all.rows || (logits && logits->rows != all.rows)) return {};
  if (!logits) return chosen->data.view();
  const ChoiceOutcome outcome = judge_choice(all, false, Ties::any, logits->data, chosen->data);
  return outcome.node.verdict == Verdict::bitwise ? chosen->data.view() : TensorView{};
}

bool is_of_logits(const Place& place) { return *place.point == point("logits"); }

// The best logits with the choices that the tensor of tokens has, where it has them: it was fed,
// whatever else was said to be chosen.
std::vector<TopLogits> with_choices_of(const RecordedTensor* token, std::vector<TopLogits> best) {
  if (!token || token->dtype != DType::i32 || token->data.view().empty()) return best;
  for (TopLogits& top : best)
    if (const auto at = std::ranges::find(token->rows, top.row); at != token->rows.end()) {
      top.chosen = static_cast<int32_t>(value_at(token->data, at - token->rows.begin()));
      if (top.chosen == -1) top.chosen = kChoseMinusOne;
    }
  return best;
}

}  // namespace

// Before it is known which contract counts: what is a finding under all that were tried. A writer
// must be told now whose tensors to keep; nodes that fit one of the contracts are not among them.
std::vector<NodeId> Judge::State::flagged_by_all(std::span<const Pending> nodes,
                                                 int32_t pass) const {
  std::vector<NodeId> flags;
  for (const Pending& node : nodes)
    if (!node.outcomes.empty() && std::ranges::all_of(node.outcomes, [](const NodeOutcome& o) {
          return o.is_finding() && !o.passes_on;
        }))
      flags.push_back({ledger.places()[node.place], pass, node.request});
  return flags;
}

// A place's last reader is an op that reads it, an attention whose cache it was written to, or a
// norm of a sum that it was added to.
void Judge::State::find_parts() {
  const std::vector<Place>& places = ledger.places();
  const int layers = manifest.graph.layers();
  for (size_t i = 0; i < places.size(); ++i) {
    if (parts.empty() || places[i].layer > parts.back().through)
      parts.push_back({.first = i, .through = places[i].layer});
    parts.back().end = i + 1;
  }
  if (!parts.empty()) parts.back().through = layers;
  last_part.resize(places.size());
  for (size_t p = 0; p < parts.size(); ++p)
    for (size_t i = parts[p].first; i < parts[p].end; ++i) {
      last_part[i] = p;
      for (const int input : manifest.graph.inputs(static_cast<int64_t>(i))) {
        last_part[input] = p;
        const Point& read = *places[input].point;
        if (read.is_cache() || read.op == OpKind::add)
          for (const int before : manifest.graph.inputs(input)) last_part[before] = p;
      }
    }
  awaited.resize(places.size());
  for (const Place& place : manifest.graph.places_to_judge(options.selection))
    awaited[manifest.graph.index_of(place)] = !options.recorded || options.recorded(place);
}

size_t Judge::State::part_of(const Place& place) const {
  const int node = manifest.graph.index_of(place);
  const auto holds = [node](const Part& part) { return node < static_cast<int>(part.end); };
  return std::ranges::find_if(parts, holds) - parts.begin();
}

size_t Judge::State::complete_parts(const Pass& so_far) const {
  std::set<int32_t> requests;
  for (const PassRow& row : so_far.info.rows) requests.insert(row.row.request);
  std::vector<size_t> shown(awaited.size());
  for (const RecordedTensor& tensor : so_far.tensors)
    if (const int node = manifest.graph.index_of({tensor.point, tensor.layer}); node >= 0)
      ++shown[node];
  size_t part = next_part;
  for (; part < parts.size(); ++part)
    for (size_t i = parts[part].first; i < parts[part].end; ++i) {
      const size_t wanted = ledger.places()[i].point->is_cache() ? requests.size() : 1;
      if (awaited[i] && shown[i] < wanted) return part;
    }
  return part;
}

// The last part, with all that comes after the layers, waits for the end of the pass.
bool Judge::State::has_next_part(const Pass& so_far) const {
  return next_part + 1 < parts.size() && complete_parts(so_far) > next_part;
}

void Judge::State::look_for_strays(const Pass& pass, size_t from) {
  for (size_t i = from; i < pass.tensors.size(); ++i) {
    const Place place{pass.tensors[i].point, pass.tensors[i].layer};
    if (manifest.graph.has(place)) continue;
    ledger.stray({.node = {.place = place, .pass = pass.info.pass},
                  .verdict = Verdict::structural,
                  .rule = "the model has no such place"});
  }
}

// Whether a rope by one of the contracts that count may have read tables that were rounded. This
// engine's never are.
RotaryTables Judge::State::tables() const {
  if (is_own_engine(manifest)) return RotaryTables::fp32;
  const std::vector<RoundingContract> of_rope = op_judge.candidates({&point("attn.q_rope"), 0});
  const bool rounds = std::ranges::any_of(of_rope, [](RoundingContract contract) {
    return contract == RoundingContract::tables_rounded || contract == RoundingContract::hf;
  });
  return rounds ? RotaryTables::may_be_rounded : RotaryTables::fp32;
}

// Where a place had wider numbers before, a tensor of few or none that would fit is of those too.
Pass Judge::State::narrowed_pass(const Pass& so_far) const {
  Pass narrow = narrowed(so_far, manifest.dtype, tables());
  for (size_t i = 0; i < narrow.tensors.size(); ++i) {
    RecordedTensor& tensor = narrow.tensors[i];
    const RecordedTensor& shown = so_far.tensors[i];
    const bool was_wide = op_judge.dtype_at({shown.point, shown.layer}) == DType::f32;
    if (tensor.dtype != shown.dtype && was_wide && !is_table(*shown.point)) tensor = shown;
  }
  return narrow;
}

void Judge::State::show(const Pass& so_far) {
  PassInWork& w = *work;
  const size_t from = std::exchange(w.tensors, so_far.tensors).size();
  w.of = &so_far;
  w.complete = complete_parts(so_far);
  w.narrow.reset();
  if (holds_narrower(so_far, manifest.dtype, tables())) w.narrow = narrowed_pass(so_far);
  w.seen.emplace(w.narrow ? *w.narrow : so_far, options.selection, &manifest.graph);
  look_for_strays(so_far, from);
  coverage.add_tensors(so_far, from);
}

// An engine may share out the attention of a decode step, and compute that of a prompt at once.
// Where a pass was not seen whole, a share that is not there may be missing.
void Judge::State::look_for_shares() {
  const bool shows = std::ranges::any_of(
      kPoints, [&](const Point& p) { return p.is_of_shares() && work->seen->shows(p); });
  work->has_no_shares = !shows;
  ++(shows ? with_shares : without_shares);
}

void Judge::State::begin_pass(const Pass& pass) {
  work.emplace(PassInWork{});
  next_part = remembered = 0;
  coverage.begin(pass.info);
  flow.begin(pass.info);
  history.begin(pass.info, facts.page_size);
  show(pass);
  op_judge.begin_pass(*work->seen);
  work->judged = {.pass = pass.info.pass,
                  .errors = error_map.begin(*work->seen),
                  .with_logits = work->seen->nodes_of({&point("logits"), -1})};
  for (const Inherited& inherited : pass.info.inherited)
    work->judged.heirs.emplace_back(inherited.request, flow.writers_of(inherited, facts.page_size));
  begin_models();
  work->pass.emplace(JudgedPass{*work->seen, history, work->exact.get(), work->rounded.get()});
}

// Nothing is seen anew of a pass to which nothing was added, of which parts may be asked about.
void Judge::State::see(const Pass& so_far) {
  const bool is_seen = work->of == &so_far && work->tensors.data() == so_far.tensors.data() &&
                       work->tensors.size() == so_far.tensors.size();
  if (is_seen) return;
  op_judge.expect_none();
  work->expected = 0;
  show(so_far);
  if (next_part < parts.size()) op_judge.see(*work->seen, parts[next_part].first);
  error_map.see(work->judged.errors, *work->seen);
}

// A model's tensors are wanted where the pass has numbers, to be compared with it. Caches are
// compared with the rows that were written to them.
std::unique_ptr<ModelPass> Judge::State::begin_model(ReferenceModel& model, std::string_view doing,
                                                     const ReferenceCheck* check_of) const {
  const Selection& selection = options.selection;
  const bool whole = !work->tensors.empty();  // as a saved pass is from its beginning on
  const auto compared = [this, check_of, &selection, whole](const Point& point, int layer) {
    const bool logits = point == lockstep::point("logits");  // tokens are explained by them
    if (point.is_cache())  // which an attention that is checked reads
      return check_of != nullptr && check_of->needs_cache(layer) &&
             selection.has(lockstep::point("attn.out"), layer);
    const bool routes = point == lockstep::point("mlp.router");  // which are compared too
    if (!(logits || routes || selection.has(point, layer))) return false;
    // The engine's layer may not be there yet.
    if (models_go_ahead && !whole) return !options.recorded || options.recorded({&point, layer});
    const RecordedTensor* tensor = work->seen->tensor({&point, layer}, /*request=*/-1);
    return tensor != nullptr && !tensor->data.view().empty();
  };
  const auto says = [this, doing](int layer) {
    if (options.progress) options.progress(doing, layer);
  };
  return std::make_unique<ModelPass>(model, work->seen->info(), compared, says, options.threads,
                                     oracle.least_measured());
}

// Both models follow the engine's choice of experts: another expert's numbers would be no error of
// rounding, and no bound would hold after it.
void Judge::State::begin_models() {
  if (!exact) return;
  if (flow.continues()) {
    for (ReferenceModel* model : {exact, rounded})
      model->follow([this](int layer) { return experts_of(*work->seen, layer); });
    reference_check.begin_pass();
    work->exact = begin_model(*exact, "reference in fp64", &reference_check);
    work->rounded = begin_model(*rounded, "reference rounded", nullptr);
    compute_ahead(0);
    return;
  }
  exact = rounded = nullptr;
  ledger.note(
      fmt::format("the reference models stop at pass {}, whose positions do not continue "
                  "those before it: nothing later is found to be propagated",
                  work->seen->info().pass));
}

void Judge::State::compute_ahead(size_t part) {
  if (!models_go_ahead || part >= parts.size()) return;
  for (auto* by : {&for_exact, &for_rounded})
    if (!*by) *by = std::make_unique<Background>();
  work->exact->begin_advance(parts[part].through, *for_exact);
  work->rounded->begin_advance(parts[part].through, *for_rounded);
}

void Judge::State::advance_models(size_t until) {
  if (!work->exact) return;
  for (size_t& part = work->computed; part < until; ++part) {
    work->exact->advance(parts[part].through);
    work->rounded->advance(parts[part].through);
    compute_ahead(part + 1);
    reference_check.check(*work->exact, static_cast<int>(parts[part].end));
    // Only a model with experts has what is compared, and it holds one layer at a time.
    routing.add(*work->seen, work->exact->pass(), work->rounded->pass());
  }
}

// Written rows first, then what is read of requests that began in another's cache: what nobody is
// known to have written is taken as given once.
void Judge::State::remember_caches(size_t until) {
  const PassView& seen = *work->seen;
  for (; remembered < until; ++remembered)
    for (size_t i = parts[remembered].first; i < parts[remembered].end; ++i) {
      const Place& place = ledger.places()[i];
      if (!place.point->is_cache()) continue;
      const RecordedTensor* k = seen.tensor(ancestry.inputs(i).at(0), -1);
      const RecordedTensor* v = seen.tensor(ancestry.inputs(i).at(1), -1);
      const bool fit = k && v && !k->data.view().empty() && !v->data.view().empty() &&
                       k->rows == v->rows && k->shape == v->shape && k->dtype == v->dtype &&
                       k->shape.rank() == 3 && k->shape[0] == std::ssize(k->rows);
      if (fit) history.write(place.layer, k->rows, k->data, v->data);
      history.write_unseen(place.layer,
                           fit ? std::span<const Row>(k->rows) : std::span<const Row>());
      for (const NodeRows& node : seen.nodes_of(place)) {
        const RecordedTensor* kv = seen.tensor(place, node.request);
        if (!kv || kv->shape.rank() != 4 || kv->shape[0] != std::ssize(kv->rows)) continue;
        const std::vector<uint64_t> hashes = hashes_of(*kv);
        if (hashes.size() == kv->rows.size())
          history.adopt(place.layer, kv->rows, hashes, kv->data);
      }
    }
}

bool Judge::State::remembers_meanwhile() const {
  constexpr size_t kLong = 256;  // rows
  return work->seen->info().rows.size() >= kLong;
}

void Judge::State::begin_to_remember(size_t until) {
  if (!remembers_meanwhile()) return remember_caches(until);
  if (!for_history) for_history = std::make_unique<Background>();
  for_history->begin([this, until] { remember_caches(until); });
}

void Judge::State::let_all_end() {
  if (for_history) for_history->let_end();
  op_judge.expect_none();
  if (!work) return;
  work->pass.reset();
  work->exact.reset();
  work->rounded.reset();
}

// The fp64 model's own ops are checked by what it shows further on.
void Judge::State::drop_compared(size_t node) {
  const Place& place = ledger.places()[node];
  if (!work->exact || is_of_logits(place)) return;
  work->rounded->drop(place);
  if (last_part[node] <= next_part) work->exact->drop(place);
}

void Judge::State::drop_read(const Part& part) {
  if (!work->exact) return;
  for (size_t i = 0; i < part.first; ++i)
    if (last_part[i] == next_part) work->exact->drop(ledger.places()[i]);
}

// Several threads would have nothing to do while a part ends and the next one begins, where it was
// shown by then. Of long passes a layer more of the models would take memory, for little.
bool Judge::State::may_expect(size_t part) {
  const bool may = oracle.asked_by_several() && !remembers_meanwhile() && part < work->complete &&
                   (!work->exact || models_go_ahead);
  if (!may) return false;
  advance_models(part + 1);
  remember_caches(part + 1);
  return true;
}

void Judge::State::expect_after(size_t node) {
  constexpr size_t kSoon = 3;  // places before an attention, at which its history is waited for
  size_t& expected = work->expected;
  const size_t wanted = node + 1 + op_judge.most_expected();
  for (size_t part = next_part; expected < std::min(parts.back().end, wanted); ++expected) {
    while (expected >= parts[part].end)
      if (!may_expect(++part)) return;
    const Place& place = ledger.places()[expected];
    if (row_of(place.point->op).attends) {
      if (remembers_meanwhile() && expected > node + kSoon) return;
      await_history();
    }
    if (!options.selection.has(*place.point, place.layer)) continue;
    std::vector<Place> read = ancestry.inputs(expected);
    std::erase_if(read, [](const Place& input) { return input.point->is_of_shares(); });
    op_judge.expect(place, read, *work->pass);
  }
}

// Once a point has been tried under several contracts, outcomes wait until one is chosen.
std::vector<NodeId> Judge::State::judge_part() {
  const WaitsWhereItThrows waits{*this};
  const Part& part = parts.at(next_part);
  advance_models(next_part + 1);
  begin_to_remember(next_part + 1);
  Judged& judged = work->judged;
  const size_t waited = judged.pending.size();
  work->expected = std::max(work->expected, part.first);
  for (size_t i = part.first; i < part.end; ++i) {
    if (options.progress) options.progress("judging", ledger.places()[i].layer);
    expect_after(i);
    const Place& place = ledger.places()[i];
    // No other place is judged by what was written.
    if (place.point->is_cache() || row_of(place.point->op).attends) await_history();
    judge_place(i, *work->pass, judged);
    drop_compared(i);
  }
  if (work->expected <= part.end) op_judge.expect_none();
  await_history();
  drop_read(part);
  ++next_part;
  if (!undeclared) return settle(judged);
  return flagged_by_all(std::span(judged.pending).subspan(waited), judged.pass);
}

std::vector<NodeId> Judge::State::settle(Judged& judged) {
  if (!std::exchange(judged.begun, true)) {
    ancestry.begin_pass();
    for (const auto& [heir, writers] : judged.heirs) ancestry.inherit(heir, writers);
    of_hidden.clear();
  }
  std::vector<NodeId> flags;
  for (Pending& pending : judged.pending)
    if (settle(pending, judged))
      flags.push_back({ledger.places()[pending.place], judged.pass, pending.request});
  judged.pending.clear();
  return flags;
}

void Judge::State::end(const Judged& judged) {
  const size_t index = index_of({&point("logits"), -1});
  for (const NodeRows& node : judged.with_logits)
    if (const int source = ancestry.of(index, node.request).finding; source >= 0)
      logits.lead_back(node.request, node.rows, text_of(ledger.place_of_finding(source)));
}

// Nothing is asked any more then: the engine may capture a graph of its own next.
void Judge::State::end_pass(const Pass& shown) {
  reference_check.wait();
  const Pass& pass = work->narrow ? *work->narrow : shown;
  flow.end(pass);
  draws.add(pass, [this](const Row& row) { return flow.tokens_up_to(row); });
  const auto keep = [this](std::vector<Finding> findings, const Point& asked) {
    for (Finding& finding : findings)
      if (options.selection.has(asked, -1) &&
          options.selection.has(Row{finding.node.request, finding.position}))
        wrong_top_logits.push_back(std::move(finding));
  };
  for (Finding& finding : top_logits_findings(pass)) {
    const Point& at = *finding.node.place.point;
    keep({std::move(finding)}, at);
  }
  keep(wrong_choices(pass), point("logits"));  // which show them, though token was left out
  const auto logits_of = [](const Pass& of) { return of.find(point("logits"), -1); };
  const auto of_model = [&](const std::unique_ptr<ModelPass>& model) {
    return model ? logits_of(model->pass()) : nullptr;
  };
  logits.add(pass.info.pass, logits_of(pass), of_model(work->exact), of_model(work->rounded),
             with_choices_of(pass.find(point("token"), -1), pass.logits));
  for (ReferenceModel* model : {exact, rounded})
    if (model) model->follow({});
  if (undeclared)
    waiting.push_back(std::move(work->judged));
  else
    end(work->judged);
  work.reset();
}

}  // namespace lockstep
