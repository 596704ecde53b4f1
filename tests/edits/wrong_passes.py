"""Wrong stories about passes: missing, there twice, in another order, other positions and pages."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from passes import drop_request, keep_rows, page_size, put_rope, relabel, renumber
from registry import DIVERGED, DOUBT, Place, add, edit, wants
from trace_model import Label, Pass, Trace, clone_pass
from wrong_values import repeat_of


# Passes.

def missing(name: str, at: Callable[[Trace], int], numbered_anew: bool, expect: int,
            quick: bool) -> None:
    def change(trace: Trace) -> None:
        del trace.passes[at(trace)]
        if numbered_anew:
            renumber(trace)
    tail = ", and the others are numbered anew" if numbered_anew else ""
    add(name + ("-renumbered" if numbered_anew else ""), "greedy", expect,
        f"a pass is missing: tokens were fed, or chosen, that no pass shows{tail}", change, quick)


for anew in (False, True):
    missing("first-pass-missing", lambda _: 0, anew, DIVERGED, not anew)
    missing("middle-pass-missing", lambda trace: repeat_of(trace)[0], anew, DIVERGED, anew)
    missing("last-pass-missing", lambda trace: len(trace.passes) - 1, anew, DOUBT, anew)


@edit("greedy", expect=DOUBT, quick=True)
def pass_there_twice(trace: Trace) -> None:
    """Two passes of one number, which is one too many even when they are the same."""
    i, one = repeat_of(trace)
    trace.passes.insert(i + 1, clone_pass(one))


@edit("greedy", expect=DOUBT, quick=True)
def pass_there_twice_and_wrong(trace: Trace) -> None:
    """Two passes of one number, and the second one's numbers are wrong: they must be seen."""
    i, one = repeat_of(trace)
    twin = clone_pass(one)
    for tensor in twin.tensors:
        if tensor.point == "mlp.down":
            tensor.put(2 * tensor.values())
    trace.passes.insert(i + 1, twin)


@edit("greedy", expect=None)
def pass_computed_again(trace: Trace) -> None:
    """A decode pass is there again under the next number: positions may start again at an earlier
    one (probes/record.h), so that this may be a right trace, of a strange engine."""
    i, one = repeat_of(trace)
    trace.passes.insert(i + 1, clone_pass(one))
    renumber(trace)


@edit("greedy", expect=DIVERGED)
def passes_reordered(trace: Trace) -> None:
    """Two decode passes are each other's: the first reads positions that nobody wrote yet."""
    i, _ = repeat_of(trace)
    trace.passes[i], trace.passes[i + 1] = trace.passes[i + 1], trace.passes[i]
    renumber(trace)


@edit("prefix", expect=DOUBT)
def heir_before_its_donor(trace: Trace) -> None:
    """A request enters with another's positions in the cache before any pass wrote them."""
    first = next(i for i, one in enumerate(trace.passes) if one.inherited)
    trace.passes = trace.passes[first:] + trace.passes[:first]
    renumber(trace)


@edit("greedy", expect=None)
def pass_numbers_with_gaps(trace: Trace) -> None:
    """Passes are numbered 0, 2, 4, ...: nothing is missing but numbers."""
    for i, one in enumerate(trace.passes):
        one.number = 2 * i


@edit("greedy", expect=None)
def pass_numbers_below_zero(trace: Trace) -> None:
    """Passes are counted from 0 (probes/record.h), and these begin at -3."""
    for i, one in enumerate(trace.passes):
        one.number = i - 3


@edit("greedy", expect=DIVERGED)
def row_there_twice(trace: Trace) -> None:
    """A pass computes the same position of a request twice, in rows of all its tensors."""
    _, one = repeat_of(trace)
    one.rows.insert(1, one.rows[0])
    one.logit_rows = list(range(len(one.rows)))
    for tensor in one.tensors:
        if not tensor.is_cache:
            tensor.take([0, *range(len(tensor.rows))])
    one.refresh_best()


@edit("greedy", expect=DIVERGED)
def row_of_a_pass_missing(trace: Trace) -> None:
    """A prompt's position is in no pass and in no tensor."""
    keep_rows(trace.passes[0], lambda label: label != (0, 2))


@edit("greedy", expect=None)
def phases_swapped(trace: Trace) -> None:
    """What prefilled says decode and the other way round: a word that no number depends on."""
    for one in trace.passes:
        for row in one.rows:
            row.phase = 1 - row.phase


@edit("greedy", expect=None)
def phases_that_are_none(trace: Trace) -> None:
    """Every row is of phase 9, where 0 and 1 are known."""
    for one in trace.passes:
        for row in one.rows:
            row.phase = 9


@edit("greedy", expect=None)
def a_pass_without_rows(trace: Trace) -> None:
    """The last pass computes nothing."""
    trace.passes.append(Pass(len(trace.passes), [], [], [], [], [], []))


@edit("greedy", expect=DOUBT, quick=True)
def no_passes(trace: Trace) -> None:
    """There is no pass and no request: nothing was judged, and nothing compared is a failure."""
    trace.passes, trace.requests = [], []


# Positions.

def move(trace: Trace, position: Callable[[Label], int]) -> None:
    """Gives every row of the trace the position that is said."""
    for one in trace.passes:
        relabel(one, lambda label: (label[0], position(label)))


@edit("greedy", expect=DIVERGED)
def positions_one_further(trace: Trace) -> None:
    """Every label is one position further: requests begin at 1, and RoPE turned by one less."""
    move(trace, lambda label: label[1] + 1)


@edit("greedy", expect=DIVERGED)
def positions_and_rope_one_further(trace: Trace) -> None:
    """Every label is one position further and RoPE with it: requests begin at 1, with nothing in
    the cache before."""
    move(trace, lambda label: label[1] + 1)
    put_rope(trace)


@edit("greedy", expect=DIVERGED)
def rope_one_further(trace: Trace) -> Place:
    """Q and K are turned as if each position were one further, throughout: attention is the same
    but for rounding, so that the two points alone can tell."""
    put_rope(trace, 1)
    return Place(0, 0, "attn.q_rope")


@edit("greedy", expect=DIVERGED)
def positions_of_one_request_further(trace: Trace) -> None:
    """The labels of one request's decode rows are one position further."""
    prompt = len(trace.request(1).prompt)
    move(trace, lambda label: label[1] + (label[0] == 1 and label[1] >= prompt))


@edit("greedy", expect=DOUBT)
def a_position_far_away(trace: Trace) -> None:
    """The last row of the trace is at position 2^25."""
    last = trace.passes[-1].rows[-1].label
    move(trace, lambda label: 1 << 25 if label == last else label[1])


# Slots and page tables.

@edit("greedy", expect=DIVERGED, quick=True)
def slot_changed(trace: Trace) -> None:
    """The K and V of a token went to the slot after the one that its page table says."""
    repeat_of(trace)[1].rows[0].slot += 1


@edit("greedy", expect=DIVERGED)
def slot_of_another_request(trace: Trace) -> None:
    """The K and V of a token went to the slot of another request's token of the same pass."""
    rows = repeat_of(trace)[1].rows
    rows[1].slot = rows[0].slot


@edit("greedy", expect=DOUBT)
def slots_gone(trace: Trace) -> None:
    """No row says where its K and V went."""
    for one in trace.passes:
        for row in one.rows:
            row.slot = -1


@edit("prefix", expect=DIVERGED)
def slot_in_a_shared_page(trace: Trace) -> None:
    """A request writes its K and V into a page that it shares with the one that it inherits."""
    one = next(one for one in trace.passes if one.inherited)
    one.rows[0].slot = one.pages[0][1][0] * page_size(trace)


@edit("greedy", expect=DOUBT, quick=True)
def page_tables_gone(trace: Trace) -> None:
    """No pass says through which pages it reads."""
    for one in trace.passes:
        one.pages = []


@edit("greedy", expect=DIVERGED)
def page_tables_of_one_pass_gone(trace: Trace) -> None:
    """One pass does not say through which pages it reads, where all others do."""
    repeat_of(trace)[1].pages = []


@edit("greedy", expect=DIVERGED)
def page_table_of_one_request_gone(trace: Trace) -> None:
    """A request of a pass has no page table, where the others have one."""
    del repeat_of(trace)[1].pages[0]


@edit("greedy", expect=DIVERGED)
def page_table_too_short(trace: Trace) -> None:
    """A page table has no page for the positions that the pass reads last."""
    repeat_of(trace)[1].pages[0][1].pop()


@edit("greedy", expect=DIVERGED)
def page_table_in_another_order(trace: Trace) -> None:
    """The pages of a request are in another order in one pass, so that it reads other positions
    than it says."""
    pages = next(pages for _, pages in repeat_of(trace)[1].pages if len(pages) > 1)
    pages[0], pages[1] = pages[1], pages[0]


@edit("greedy", expect=DIVERGED)
def page_tables_swapped(trace: Trace) -> None:
    """In one pass two requests have each other's page tables."""
    one = repeat_of(trace)[1]
    (a, first), (b, second), *others = one.pages
    one.pages = [(a, second), (b, first), *others]


@edit("greedy", expect=DIVERGED, quick=True)
def two_requests_on_one_page(trace: Trace) -> None:
    """Two requests write their different tokens to the same slots of one page, throughout."""
    mine, theirs = (next(pages[0] for one in trace.passes for request, pages in one.pages
                         if request == wanted) for wanted in (1, 0))
    size = page_size(trace)
    for one in trace.passes:
        one.pages = [(request, [theirs if page == mine else page for page in pages])
                     for request, pages in one.pages]
        for row in one.rows:
            if row.slot // size == mine:
                row.slot += (theirs - mine) * size


@edit("greedy", expect=DIVERGED)
def a_page_below_zero(trace: Trace) -> None:
    """A page table names page -1."""
    repeat_of(trace)[1].pages[0][1][0] = -1


@edit("greedy", expect=DIVERGED)
def a_page_beyond_the_pool(trace: Trace) -> None:
    """A page table names page 2^31 - 1 of a pool of few."""
    repeat_of(trace)[1].pages[0][1][0] = 2**31 - 1


@edit("greedy", expect=None)
def a_page_table_too_many(trace: Trace) -> None:
    """A pass has a page table of a request that has no row in it."""
    trace.passes[-1].pages.append((2, [0]))


def page_size_edit(name: str, value: str, expect: int, quick: bool = False) -> None:
    def change(trace: Trace) -> None:
        trace.provenance["page_size"] = value
    add(f"page-size-{name}", "greedy", expect,
        "slots and page tables cannot be understood with this size of a page", change, quick)


page_size_edit("0", "0", DOUBT, True)
page_size_edit("minus-5", "-5", DOUBT)
page_size_edit("huge", str(2**63 - 1), DOUBT)
page_size_edit("beyond-64-bits", str(2**64), DOUBT)
page_size_edit("a-word", "four", DOUBT)
page_size_edit("empty", "", DOUBT)
page_size_edit("another", "8", DIVERGED)


@edit("greedy", expect=None)
def page_size_gone(trace: Trace) -> None:
    """Nothing says how large a page is, which no text says that a trace must."""
    del trace.provenance["page_size"]


# Wrong state at the entry of requests.

@edit("prefix", expect=DIVERGED, quick=True)
def inherited_gone(trace: Trace) -> None:
    """A request begins past position 0 and inherits nothing."""
    for one in trace.passes:
        one.inherited = []


@edit("prefix", expect=DOUBT)
def donor_taken_out(trace: Trace) -> None:
    """A request inherits from one that is not in the trace: what was in the cache is not known."""
    drop_request(trace, 0)


@edit("prefix", expect=DOUBT)
def inherited_unknown(trace: Trace) -> None:
    """A request begins past position 0, and the trace does not say what it inherits."""
    trace.inherited_known = False


@edit("prefix", expect=DIVERGED)
def inherited_token_changed(trace: Trace) -> None:
    """A request inherits a token that is neither its own nor the donor's."""
    one = next(one for one in trace.passes if one.inherited)
    one.inherited[0][1][2] += 1


@edit("prefix", expect=DIVERGED)
def inherited_one_more(trace: Trace) -> None:
    """A request inherits one more token than anyone wrote, and computes it all the same."""
    one = next(one for one in trace.passes if one.inherited)
    one.inherited[0][1].append(one.rows[0].token)


@edit("prefix", expect=DIVERGED)
def inherited_one_less(trace: Trace) -> None:
    """A request inherits one token less than it has no row for."""
    one = next(one for one in trace.passes if one.inherited)
    one.inherited[0][1].pop()


@edit("prefix", expect=DIVERGED)
def inherited_rows_other(trace: Trace) -> Place:
    """What a request reads at an inherited position is not what the donor wrote there."""
    one = next(one for one in trace.passes if one.inherited)
    cache = one.find("attn.kv", 2, one.rows[0].request)
    cache.put_hashes([cache.row_xxh3[0] ^ 1, *cache.row_xxh3[1:]])
    return Place(one.number, 2, "attn.kv")


@edit("greedy", expect=DOUBT, quick=True)
def inherited_from_nobody(trace: Trace) -> None:
    """The first chunk of a request is said to be inherited: no pass of the trace wrote it."""
    one = trace.passes[0]
    tokens = [row.token for row in one.rows if row.request == 0]
    wants(len(tokens) < len(trace.request(0).prompt), "a prompt of several chunks")
    keep_rows(one, lambda label: label[0] != 0)
    trace.passes[1].inherited.append((0, tokens))


@edit("greedy", expect=DIVERGED)
def rows_beyond_the_pass(trace: Trace) -> Place:
    """A tensor has a row of a position that its pass did not compute."""
    _, one = repeat_of(trace)
    tensor = one.find("attn.q", 2)
    assert tensor.bits is not None
    tensor.rows = [*tensor.rows, (2, 99)]
    tensor.put_bits(np.concatenate([tensor.bits, tensor.bits[-1:]]))
    return Place(one.number, 2, "attn.q")
