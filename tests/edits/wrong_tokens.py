"""Wrong stories about tokens: prompts, what was chosen, drawn or forced, requests, and /logits."""
from __future__ import annotations

import copy

import numpy as np
from registry import DIVERGED, DOUBT, Place, edit, wants
from trace_model import Best, Pass, Row, Trace
from wrong_values import bits, repeat_of


def fed(trace: Trace, request: int, position: int) -> tuple[Pass, Row]:
    """The row of a position, and its pass."""
    return next((one, row) for one in trace.passes for row in one.rows
                if row.label == (request, position))


def other(token: int) -> int:
    return token + 1 if token < 1000 else token - 1


def chosen_at(trace: Trace, request: int, step: int) -> tuple[Pass, Best]:
    position = len(trace.request(request).prompt) + step - 1
    return next((one, best) for one in trace.passes for best in one.best
                if (best.request, best.position) == (request, position))


# Prompts.

@edit("greedy", "moe", expect=DIVERGED)
def prompt_token_changed(trace: Trace) -> Place:
    """A token of a prompt is another one, in /requests and where it was fed: its embedding is not
    that of the token."""
    one, row = fed(trace, 0, 1)
    row.token = trace.request(0).prompt[1] = other(row.token)
    return Place(one.number, -1, "embed")


@edit("greedy", expect=DIVERGED)
def prompt_token_changed_in_requests(trace: Trace) -> None:
    """/requests has another prompt than was fed."""
    prompt = trace.request(0).prompt
    prompt[1] = other(prompt[1])


@edit("greedy", expect=DIVERGED)
def prompt_token_changed_where_fed(trace: Trace) -> Place:
    """A pass says that it was fed another token than the prompt has."""
    one, row = fed(trace, 0, 1)
    row.token = other(row.token)
    return Place(one.number, -1, "embed")


@edit("greedy", expect=DIVERGED)
def prompt_longer_than_fed(trace: Trace) -> None:
    """The prompt in /requests has one token more than was fed before the first choice."""
    trace.request(1).prompt.append(7)


@edit("greedy", expect=DIVERGED)
def prompt_without_its_last(trace: Trace) -> None:
    """The prompt in /requests lacks its last token, which nobody chose then."""
    trace.request(1).prompt.pop()


@edit("greedy", expect=DIVERGED)
def prompts_swapped(trace: Trace) -> None:
    """Two requests have each other's prompt in /requests."""
    first, second = trace.request(0), trace.request(1)
    first.prompt, second.prompt = second.prompt, first.prompt


@edit("greedy", expect=DOUBT)
def token_beyond_the_vocabulary(trace: Trace) -> None:
    """A token that is fed, and in the prompt, is beyond the vocabulary."""
    fed(trace, 0, 1)[1].token = trace.request(0).prompt[1] = 1 << 24


@edit("greedy", expect=DOUBT)
def token_below_zero(trace: Trace) -> None:
    """A token that is fed, and in the prompt, is -1."""
    fed(trace, 0, 1)[1].token = trace.request(0).prompt[1] = -1


# Wrong chosen tokens.

@edit("greedy", expect=DIVERGED, quick=True)
def output_token_changed_in_requests(trace: Trace) -> None:
    """/requests has another token than was chosen and fed."""
    tokens = trace.request(0).tokens
    tokens[1] = other(tokens[1])


@edit("greedy", expect=DIVERGED, quick=True)
def last_token_changed_in_requests(trace: Trace) -> None:
    """/requests has another last token, which was never fed, than was chosen."""
    tokens = trace.request(0).tokens
    tokens[-1] = other(tokens[-1])


@edit("greedy", expect=DIVERGED)
def output_token_changed(trace: Trace) -> None:
    """Another token than the chosen one is in /requests and was fed: its embedding is not that of
    the token, and before that, greedy runs choose what is most likely."""
    tokens = trace.request(0).tokens
    tokens[1] = other(tokens[1])
    fed(trace, 0, len(trace.request(0).prompt) + 1)[1].token = tokens[1]


@edit("sampled", expect=DIVERGED, quick=True)
def drawn_token_changed(trace: Trace) -> Place:
    """Another token than the drawn one is in /requests and was fed: its embedding is not that of
    the token."""
    tokens = trace.request(0).tokens
    tokens[1] = other(tokens[1])
    one, row = fed(trace, 0, len(trace.request(0).prompt) + 1)
    row.token = tokens[1]
    return Place(one.number, -1, "embed")


@edit("sampled", expect=DIVERGED)
def drawn_token_changed_in_requests(trace: Trace) -> None:
    """/requests has another drawn token than was fed."""
    tokens = trace.request(0).tokens
    tokens[1] = other(tokens[1])


@edit("sampled", expect=DIVERGED)
def drawn_token_changed_where_fed(trace: Trace) -> Place:
    """A pass says that it was fed another token than the one drawn."""
    one, row = fed(trace, 0, len(trace.request(0).prompt) + 1)
    row.token = other(row.token)
    return Place(one.number, -1, "embed")


@edit("sampled", expect=None)
def last_drawn_token_changed(trace: Trace) -> None:
    """/requests has another last token than was drawn: it was never fed, and any may be drawn."""
    tokens = trace.request(0).tokens
    tokens[-1] = other(tokens[-1])


@edit("sampled", expect=DIVERGED)
def sampled_run_said_to_be_greedy(trace: Trace) -> None:
    """Drawn tokens are said to be the most likely ones, which they are not."""
    for request in trace.requests:
        wants(request.tokens != request.argmax, "a token that was drawn against the odds")
        request.sampled = 0


@edit("greedy", expect=None)
def greedy_run_said_to_be_sampled(trace: Trace) -> None:
    """The most likely tokens are said to be drawn, which they may be."""
    for request in trace.requests:
        request.sampled = 1


@edit("sampled", expect=DIVERGED)
def drawn_token_beyond_the_vocabulary(trace: Trace) -> None:
    """The last drawn token is none of the vocabulary: nobody can draw that."""
    trace.request(0).tokens[-1] = 1 << 24


@edit("greedy", "moe", "fp16", expect=DIVERGED, quick=True)
def not_the_argmax(trace: Trace) -> Place:
    """The last token of a request is the second most likely one, wherever it is written."""
    request = trace.requests[0]
    one, best = chosen_at(trace, request.id, len(request.tokens) - 1)
    token = one.find("token", -1)
    out = bits(token)
    out[token.rows.index((best.request, best.position))] = best.ids[1]
    token.put_bits(out)
    best.chosen = request.tokens[-1] = request.argmax[-1] = best.ids[1]
    return Place(one.number, -1, "token")


@edit("greedy", expect=DIVERGED)
def not_the_argmax_and_fed(trace: Trace) -> Place:
    """A greedy run chose the second most likely token, and was fed it, wherever it is written."""
    request = trace.request(0)
    one, best = chosen_at(trace, 0, 1)
    token = one.find("token", -1)
    out = bits(token)
    out[token.rows.index((best.request, best.position))] = best.ids[1]
    token.put_bits(out)
    best.chosen = request.tokens[1] = request.argmax[1] = best.ids[1]
    fed(trace, 0, len(request.prompt) + 1)[1].token = best.ids[1]
    return Place(one.number, -1, "token")


@edit("greedy", "sampled", expect=DIVERGED)
def argmax_of_requests_changed(trace: Trace) -> None:
    """/requests has another most likely token than the point token."""
    argmax = trace.request(0).argmax
    argmax[1] = other(argmax[1])


@edit("greedy", expect=DIVERGED)
def argmax_of_requests_shorter(trace: Trace) -> None:
    """/requests lacks the last of the most likely tokens."""
    trace.request(0).argmax.pop()


@edit("greedy", expect=DOUBT)
def a_token_too_many(trace: Trace) -> None:
    """/requests has a token after the last that was chosen, of which there is no row of logits."""
    trace.request(0).tokens.append(11)


@edit("greedy", expect=DIVERGED)
def a_token_too_few(trace: Trace) -> None:
    """/requests lacks the last token that was chosen."""
    trace.request(0).tokens.pop()


@edit("greedy", expect=DIVERGED)
def no_tokens_at_all(trace: Trace) -> None:
    """/requests has no token of a request that was fed back several."""
    trace.request(0).tokens.clear()


# Forced tokens.

@edit("forced", expect=DIVERGED)
def forced_token_changed(trace: Trace) -> None:
    """/requests says that another token was forced than was fed."""
    forced = trace.requests[0].forced
    forced[1] = other(forced[1])


@edit("forced", expect=DIVERGED)
def forced_token_changed_throughout(trace: Trace) -> Place:
    """Another token is forced, in the lists of /requests and where it was fed."""
    request = trace.requests[0]
    one, row = fed(trace, request.id, len(request.prompt) + 1)
    row.token = request.forced[1] = request.tokens[1] = other(row.token)
    return Place(one.number, -1, "embed")


@edit("forced", expect=DIVERGED)
def forced_tokens_gone(trace: Trace) -> None:
    """Tokens were fed that are neither forced nor the most likely."""
    trace.requests[0].forced = []


@edit("forced", expect=DIVERGED)
def forced_tokens_fewer(trace: Trace) -> None:
    """The last of the forced tokens is not among them, and was not the most likely."""
    trace.requests[0].forced.pop()


@edit("greedy", expect=DIVERGED)
def forced_tokens_that_were_not_fed(trace: Trace) -> None:
    """A request has forced tokens, and was fed others."""
    request = trace.request(0)
    request.forced = [other(token) for token in request.tokens[:-1]]


# Requests.

@edit("greedy", expect=DOUBT, quick=True)
def request_there_twice(trace: Trace) -> None:
    """/requests has one id twice."""
    trace.requests.append(copy.deepcopy(trace.requests[0]))


@edit("greedy", expect=DOUBT)
def request_there_twice_and_other(trace: Trace) -> None:
    """/requests has one id twice, with other tokens the second time."""
    twin = copy.deepcopy(trace.requests[0])
    twin.prompt = [other(token) for token in twin.prompt]
    trace.requests.append(twin)


# Of a request without a pass there is no node that could be wrong, and nobody can tell whether its
# passes are lacking or it never ran: what was asked for is not shown, which is doubt.
@edit("greedy", expect=DOUBT, quick=True)
def a_request_that_no_pass_shows(trace: Trace) -> None:
    """/requests has one more, with a prompt and tokens of which there is no pass."""
    twin = copy.deepcopy(trace.requests[0])
    twin.id = 77
    trace.requests.append(twin)


@edit("greedy", expect=DOUBT)
def a_request_that_only_waits(trace: Trace) -> None:
    """/requests has one more, with a prompt and no tokens, that no pass begins."""
    twin = copy.deepcopy(trace.requests[0])
    twin.id, twin.tokens, twin.argmax = 77, [], []
    trace.requests.append(twin)


@edit("greedy", expect=DOUBT, quick=True)
def a_request_that_is_not_declared(trace: Trace) -> None:
    """Passes compute a request that is not in /requests, where others are."""
    del trace.requests[0]


@edit("greedy", expect=DIVERGED)
def two_requests_with_each_others_ids(trace: Trace) -> None:
    """/requests has the ids of two requests the other way round."""
    first, second = trace.requests[:2]
    first.id, second.id = second.id, first.id


# Logits.

def without_logits(one: Pass) -> None:
    one.logit_rows, one.best = [], []
    one.tensors = [t for t in one.tensors if t.point not in ("logits", "token")]


@edit("greedy", "sampled", expect=DOUBT, quick=True)
def logits_of_a_pass_not_asked_for(trace: Trace) -> None:
    """A decode pass has no row of logits: nobody chose the token that is fed next."""
    without_logits(repeat_of(trace)[1])


@edit("greedy", "sampled", expect=DOUBT)
def logits_of_the_last_pass_not_asked_for(trace: Trace) -> None:
    """The last pass has no row of logits: nobody chose the last token."""
    without_logits(trace.passes[-1])


@edit("greedy", "sampled", expect=DOUBT)
def logits_not_asked_for(trace: Trace) -> None:
    """No pass has a row of logits, though tokens were chosen."""
    for one in trace.passes:
        without_logits(one)


@edit("greedy", expect=DOUBT, quick=True)
def logits_and_requests_gone(trace: Trace) -> None:
    """No pass has a row of logits and /requests is empty: what the model is for, its logits, was
    never judged, so that this is not clean."""
    for one in trace.passes:
        without_logits(one)
    trace.requests = []


@edit("greedy", expect=DOUBT)
def logits_of_one_request_not_asked_for(trace: Trace) -> None:
    """A decode pass has rows of logits for all but one request."""
    one = repeat_of(trace)[1]
    one.logit_rows.pop(0)
    for name in ("logits", "token"):
        tensor = one.find(name, -1)
        tensor.take([i for i, label in enumerate(tensor.rows) if label != one.rows[0].label])
    one.refresh_best()


@edit("greedy", expect=DIVERGED, quick=True)
def logits_of_another_request(trace: Trace) -> Place:
    """Two requests have each other's logits and tokens, wherever they are written."""
    _, one = repeat_of(trace)
    for name in ("logits", "token"):
        tensor = one.find(name, -1)
        tensor.put_bits(bits(tensor)[[1, 0, *range(2, tensor.shape[0])]])
    one.refresh_best()
    return Place(one.number, -1, "logits")


@edit("greedy", expect=DIVERGED)
def logit_row_of_another_token(trace: Trace) -> None:
    """The row of logits of a prompt is said to be that of the token before its last."""
    one = next(one for one in trace.passes if any(
        row.request == 1 and row.position == len(trace.request(1).prompt) - 1
        for row in one.rows))
    at = one.logit_rows[next(i for i, best in enumerate(one.best) if best.request == 1)]
    wants(one.rows[at - 1].request == 1, "a chunk of several tokens")
    one.logit_rows[one.logit_rows.index(at)] = at - 1
    old, new = one.rows[at].label, one.rows[at - 1].label
    for name in ("logits", "token"):
        tensor = one.find(name, -1)
        tensor.rows = [new if label == old else label for label in tensor.rows]
    one.refresh_best()


@edit("greedy", expect=DIVERGED)
def best_ids_other(trace: Trace) -> None:
    """/logits names other tokens as the most likely than the tensor of logits does."""
    best = repeat_of(trace)[1].best[0]
    best.ids = [other(token) for token in best.ids]


@edit("greedy", expect=DIVERGED)
def best_values_other(trace: Trace) -> None:
    """/logits has other numbers for the most likely tokens than the tensor of logits."""
    best = repeat_of(trace)[1].best[0]
    best.values = [value + 1 for value in best.values]


@edit("greedy", expect=DOUBT)
def best_margin_other(trace: Trace) -> None:
    """/logits has another margin than that of its values."""
    repeat_of(trace)[1].best[0].margin += 1


@edit("greedy", expect=DIVERGED, quick=True)
def best_chosen_other(trace: Trace) -> None:
    """/logits says that another token was chosen than the tensor token does."""
    best = repeat_of(trace)[1].best[0]
    best.chosen = best.ids[1]


@edit("greedy", expect=DIVERGED)
def best_of_another_row(trace: Trace) -> None:
    """/logits gives two requests each other's rows."""
    best = repeat_of(trace)[1].best
    best[0].request, best[1].request = best[1].request, best[0].request
    best[0].position, best[1].position = best[1].position, best[0].position


@edit("greedy", expect=DIVERGED)
def best_of_a_pass_gone(trace: Trace) -> None:
    """/logits has no row for the logits of one pass."""
    repeat_of(trace)[1].best = []


@edit("greedy", expect=DIVERGED, quick=True)
def best_gone(trace: Trace) -> None:
    """/logits has no row at all, where there are tensors of logits."""
    for one in trace.passes:
        one.best = []


@edit("greedy", expect=DIVERGED)
def best_there_twice(trace: Trace) -> None:
    """/logits has a row twice, and the second time with another token chosen."""
    best = repeat_of(trace)[1].best
    twin = copy.deepcopy(best[0])
    twin.chosen = twin.ids[1]
    best.insert(1, twin)


@edit("greedy", expect=DIVERGED)
def logits_in_a_narrower_vocabulary(trace: Trace) -> Place:
    """The logits of a pass lack the last eight tokens of the vocabulary."""
    _, one = repeat_of(trace)
    logits = one.find("logits", -1)
    logits.put_bits(np.ascontiguousarray(bits(logits)[:, :-8]))
    return Place(one.number, -1, "logits")
