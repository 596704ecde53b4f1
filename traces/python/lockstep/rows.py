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

    inherited: by request, the tokens of positions 0, 1, ... that another put into the cache. told:
    somebody said which rows are of decode.
    """

    rows: list[Row]
    logit_rows: list[int]
    inherited: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    told: bool = False

    def with_logits(self) -> list[Row]:
        return [self.rows[i] for i in self.logit_rows]


class Phases:
    """Which rows are of decode, where nobody says it: those of a request that go on behind a row
    that chose something, if it has one row in the pass, or several that choose each (speculative
    decoding), the last of which may have been guesses."""

    def __init__(self) -> None:
        # By request, the positions of the first and the last row that was the last to choose.
        self._chose: dict[int, tuple[int, int]] = {}
        self._all: set[int] = set()  # requests whose prompt got logits in every row: they tell less

    def of(self, owners: Sequence[int], positions: Sequence[int],
           logit_rows: Iterable[int]) -> list[bool]:
        """By row of the pass that comes."""
        rows: dict[int, list[int]] = {}
        for i, owner in enumerate(owners):
            rows.setdefault(owner, []).append(i)
        wanted, decode = set(logit_rows), [False] * len(owners)
        for owner, own in rows.items():
            first, last = self._chose.get(owner, (0, -1))
            behind = first <= positions[own[0]] - 1 <= last
            if behind and (len(own) == 1 or owner not in self._all and wanted.issuperset(own)):
                for i in own:
                    decode[i] = True
        return decode

    def end(self, run: PassRows) -> None:
        """Takes in what a pass has chosen."""
        count: dict[int, int] = {}
        for row in run.rows:
            count[row.request] = count.get(row.request, 0) + 1
        chose: dict[int, list[Row]] = {}
        for row in run.with_logits():
            chose.setdefault(row.request, []).append(row)
        for owner, rows in chose.items():
            if not rows[-1].decode and len(rows) == count[owner] > 1:
                self._all.add(owner)
            last = rows[-1].position
            self._chose[owner] = (min(self._chose.get(owner, (last,))[0], last), last)


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


def last_rows(owners: Sequence[int]) -> list[int]:
    """Of each request the number of its last row: those that get logits as a rule. owners: the
    request of each row."""
    return sorted({owner: i for i, owner in enumerate(owners)}.values())


@dataclasses.dataclass
class _History:
    """What a request was fed and what its rows chose, by position."""

    fed: dict[int, int] = dataclasses.field(default_factory=dict)  # what came last
    likely: dict[int, int] = dataclasses.field(default_factory=dict)
    picked: dict[int, int] = dataclasses.field(default_factory=dict)
    prompt: int = 0
    # Drafts (speculative decoding), by position: the row before each is in the same pass and
    # chooses what stands there, where nobody had fed anything. Of its last pass that had any, until
    # a later one goes on behind them; and the positions of all that stayed.
    drafts: dict[int, int] = dataclasses.field(default_factory=dict)
    stayed: set[int] = dataclasses.field(default_factory=set)
    speculates: bool = False  # some draft had another token in its place
    told: bool = False        # somebody said which of its rows are of decode

    def begin(self, tokens: Mapping[int, int], answered: set[int]) -> None:
        """Its rows of a pass, by position, and which of them get logits."""
        other = [at for at, draft in self.drafts.items() if tokens.get(at, draft) != draft]
        if other and other[0] >= self.prompt:
            self.speculates = True
            self.refuse(other[0])
        elif self.drafts and max(tokens) >= max(self.drafts):
            self.stayed.update(self.drafts)
            self.drafts = {}
        drafts = {at: token for at, token in tokens.items()
                  if at - 1 in answered and at not in self.fed}
        self.drafts = drafts or self.drafts
        if min(tokens) in self.fed:  # it goes back, and what it decoded will be computed again
            last = max(*tokens, self.prompt - 1)
            for at in [at for at in self.fed if at > last]:
                del self.fed[at]
        self.fed.update(tokens)

    def refuse(self, first: int) -> None:
        """Forgets the pending drafts from a position on, and what they chose."""
        for position in self.drafts:
            if position >= first:
                for of in (self.fed, self.likely, self.picked):
                    of.pop(position, None)
        self.stayed.update(at for at in self.drafts if at < first)
        self.drafts = {}

    def end(self) -> None:
        """Forgets the drafts of the last pass that are not what was chosen."""
        choices = {**self.likely, **self.picked}
        for position, draft in self.drafts.items():
            if position >= self.prompt and choices.get(position - 1, draft) != draft:
                self.refuse(position)
                return

    def likely_from(self, first: int) -> list[int]:
        """What was most likely at each choice from that position on; nothing where one of these is
        not known, for the next one would stand in its place."""
        seen = [at for at in {*self.likely, *self.picked} if first <= at <= max(self.fed)]
        choices = range(first, max(seen, default=first - 1) + 1)
        return [self.likely[at] for at in choices] if self.likely.keys() >= set(choices) else []

    def is_forced(self, position: int) -> bool:
        """Whether somebody else chose that token. Who refuses drafts chose those that stay, and one
        that nobody chose is its mistake."""
        token = self.fed[position]
        return self.picked.get(position - 1, token) != token and \
            not (self.speculates and (position in self.stayed or position in self.drafts))


def requests_of(passes: Sequence[PassRows], argmax: Sequence[dict[Row, int]],
                chosen: Sequence[dict[Row, int]], sampled: Mapping[int, int]) -> list[Request]:
    """The requests that the passes tell of.

    The prompt is what requests entered with and what the first passes fed; what a decode row fed is
    a token that was chosen before, or a draft that was chosen in the same pass, and what the last
    row of logits chose is the last. Drafts that were refused are none of its tokens. Of a request
    of which nobody told some token before its last, none are named. argmax and chosen have, by
    pass, the most likely and the chosen token of each row of logits, as far as they are known.
    Tokens that are not the chosen ones were forced, unless they were drawn: sampled has the last
    one of each request of which they were; or drafts, of an engine that refuses others.
    """
    found: dict[int, Request] = {}
    histories: dict[int, _History] = {}
    for run, best, taken in zip(passes, argmax, chosen):
        for request, tokens in run.inherited.items():
            found_here = dict(enumerate(tokens))
            if request not in histories:
                histories[request] = _History(found_here, prompt=len(tokens))
            else:  # it comes back, with what it was fed before, or in passes that are left out
                histories[request].fed = found_here | histories[request].fed
        fed: dict[int, dict[int, int]] = {}
        answered: dict[int, set[int]] = {}
        for row in run.rows:
            fed.setdefault(row.request, {})[row.position] = row.token
        for row in run.with_logits():
            answered.setdefault(row.request, set()).add(row.position)
        for request, tokens in fed.items():
            histories.setdefault(request, _History()).begin(tokens, answered.get(request, set()))
        for row in run.rows:
            of = histories[row.request]
            if not row.decode:
                of.prompt = max(of.prompt, row.position + 1)
            of.told = of.told or (run.told and row.decode)
        for row, token in best.items():
            histories[row.request].likely[row.position] = token
        for row, token in taken.items():
            histories[row.request].picked[row.position] = token
    for request, of in histories.items():
        drawn = request in sampled
        if (of.speculates or of.told) and not drawn:  # else they may as well have been given
            of.end()
        if not of.fed or len(of.fed) <= max(of.fed):
            found[request] = Request(request, [], sampled=drawn)
            continue
        end, length = of.prompt, len(of.fed)
        tokens = [of.fed[at] for at in range(length)]
        forced = not drawn and any(of.is_forced(at) for at in range(end, length))
        last = sampled[request] if drawn else of.picked.get(length - 1)
        found[request] = Request(
            request, tokens[:end], tokens[end:] + ([last] if last is not None else []),
            tokens[end:] if forced else [],
            of.likely_from(max(end - 1, 0)), drawn, "")
    return [found[request] for request in sorted(found)]
