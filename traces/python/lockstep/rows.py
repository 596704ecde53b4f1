"""Whose rows a tensor has, and what requests were given and chose."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

Run = tuple[int, int, int]  # request, first position, count: consecutive positions


@dataclasses.dataclass(frozen=True)
class Row:
    """A token that a pass computed."""

    request: int
    position: int
    token: int
    decode: bool = False


@dataclasses.dataclass
class PassRows:
    """A forward pass: its rows, which of them get logits, and what requests enter it with.

    inherited: by request, the tokens of positions 0, 1, ... that another put into the cache.
    """

    rows: list[Row]
    logit_rows: list[int]
    inherited: dict[int, list[int]] = dataclasses.field(default_factory=dict)

    def with_logits(self) -> list[Row]:
        return [self.rows[i] for i in self.logit_rows]


@dataclasses.dataclass
class Request:
    """What a request was given, what followed, and what was most likely.

    tokens: what was fed back and, last, what was chosen at the end. forced: the same where somebody
    else chose them. sampled: they were drawn, and need not be the most likely.
    """

    id: int
    prompt: list[int]
    tokens: list[int] = dataclasses.field(default_factory=list)
    forced: list[int] = dataclasses.field(default_factory=list)
    argmax: list[int] = dataclasses.field(default_factory=list)
    sampled: bool = False
    name: str = ""


def runs_of(rows: Iterable[Row]) -> list[Run]:
    """The rows as runs of consecutive positions of a request."""
    runs: list[Run] = []
    for row in rows:
        if runs and runs[-1][0] == row.request and runs[-1][1] + runs[-1][2] == row.position:
            runs[-1] = (row.request, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((row.request, row.position, 1))
    return runs


def last_rows(rows: Sequence[Row]) -> list[int]:
    """Of each request the number of its last row: those that get logits as a rule."""
    last = {row.request: i for i, row in enumerate(rows)}
    return sorted(last.values())


def requests_of(passes: Sequence[PassRows], argmax: Sequence[dict[Row, int]],
                chosen: Sequence[dict[Row, int]], sampled: Mapping[int, int]) -> list[Request]:
    """The requests that the passes tell of.

    The prompt is what requests entered with and what the first passes fed; what a decode row fed is
    a token that was chosen before, and what the last row of logits chose is the last. Of a request
    whose first tokens nobody told of, none are named. argmax and
    chosen have, by pass, the most likely and the chosen token of each row of logits, as far as they
    are known. Tokens that are not the chosen ones were forced, unless they were drawn: sampled has
    the last one of each request of which they were.
    """
    found: dict[int, Request] = {}
    fed: dict[int, dict[int, int]] = {}   # by request and position, what came last
    likely: dict[int, dict[int, int]] = {}
    picked: dict[int, dict[int, int]] = {}
    prompts: dict[int, int] = {}
    for run, best, taken in zip(passes, argmax, chosen):
        for request, tokens in run.inherited.items():
            if request not in fed:  # else it comes back, with what it was fed before
                fed[request] = dict(enumerate(tokens))
                prompts[request] = len(tokens)
        for row in run.rows:
            fed.setdefault(row.request, {})[row.position] = row.token
            if not row.decode:
                prompts[row.request] = max(prompts.get(row.request, 0), row.position + 1)
        for table, values in ((likely, best), (picked, taken)):
            for row, token in values.items():
                table.setdefault(row.request, {})[row.position] = token
    for request, tokens in fed.items():
        if 0 not in tokens:
            found[request] = Request(request, [], sampled=request in sampled)
            continue
        end, length = prompts.get(request, 0), max(tokens) + 1
        own, argmaxes = picked.get(request, {}), likely.get(request, {})
        after = [tokens[at] for at in range(end, length) if at in tokens]
        drawn = request in sampled
        forced = not drawn and any(own.get(at - 1, tokens[at]) != tokens[at]
                                   for at in range(end, length) if at in tokens)
        last = sampled[request] if drawn else own.get(length - 1)
        found[request] = Request(
            request, [tokens[at] for at in range(end) if at in tokens],
            after + ([last] if last is not None else []), after if forced else [],
            [argmaxes[at] for at in range(max(end - 1, 0), length) if at in argmaxes],
            drawn, "")
    return [found[request] for request in sorted(found)]
