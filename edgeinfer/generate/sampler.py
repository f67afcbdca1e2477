"""The sampler chain: one row of logits -> one token id.

What a grammar does not allow leaves first, then bias is added (-inf, ignore_eos and ids that no token has are bans), then
the samplers follow in the order of `SamplingParams.samplers`; its default is llama.cpp's: penalties, DRY, top-n-sigma,
top-k, typical, top-p, min-p, XTC, temperature. Temperature comes last, so it shapes the choice among the tokens that are
left and never which tokens are left. At least one candidate always remains after each filter.

With top-k first or temperature 0 only the few largest logits ever reach Python (`Logits.top`); a sampler that needs the
whole distribution runs over it in NumPy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..engine.types import Logits
from ..errors import NumericError, SettingError
from .candidates import Candidates
from .dry import Breakers, Dry
from .params import SamplingParams

__all__ = ["Constraint", "Sampler"]

_Edit = Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]]
_MOST_MISSES = 4  # in a row that are counted
_ROUND, _MOST_ASKED = 16, 192  # tokens that a grammar is asked about one by one in a round, and at most
_EDITS = ("penalties", "dry")  # samplers that change logits and drop none


class Constraint(Protocol):
    """What the answer has to look like, as far as the sampler asks."""

    @property
    def complete(self) -> bool:
        """Whether the answer so far is whole and nothing can follow."""

    def allows(self, token: int) -> bool:
        """Whether the token may be next."""

    def mask(self, row: NDArray[np.float32]) -> None:
        """Set the logits (n_tokens,) of all tokens that may not be next to -inf."""

    def accept(self, token: int) -> None:
        """Take note of the next token."""


class Sampler:
    """Chooses tokens for one answer; remembers what the penalties look back on, and its random generators.

    n_vocab is the width of a row, n_tokens how many of its ids are tokens (rows of padding are never chosen), banned
    are ids that are never chosen (the end tokens, with ignore_eos), breakers those of DRY.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        n_tokens: int | None = None,
        banned: Iterable[int] = (),
        history: Iterable[int] = (),
        breakers: Breakers | None = None,
        grammar: Constraint | None = None,
    ) -> None:
        self.params = params
        self._n_vocab = n_vocab
        self._n_tokens = n_vocab if n_tokens is None else min(n_tokens, n_vocab)
        self._grammar = grammar
        self._misses = self._skips = 0  # questions in vain, one after the other; steps that ask none because of them
        self._bias = dict(params.logit_bias)
        for token in self._bias:
            if token >= n_vocab:
                raise SettingError(f"logit_bias names token {token}; the model's ids end at {n_vocab - 1}")
        for token in banned:
            self._bias[token] = -np.inf
        self._bias_lowers = all(
            bias <= 0.0 for bias in self._bias.values()
        )  # then a best token that has none stays best
        filters = params.filters
        first = next((i for i, name in enumerate(filters) if name not in _EDITS), len(filters))
        # edits that come first touch few tokens of a row that is not copied; if greedy, nothing but edits matters
        self._edits = tuple(name for name in filters if name in _EDITS) if params.greedy else filters[:first]
        self._filters = filters[first:]
        self._xtc = "xtc" in self._filters and not params.greedy
        self._mu = 2.0 * params.mirostat_tau
        window = None if params.repeat_last_n < 0 else params.repeat_last_n
        self._window: deque[int] = deque(maxlen=window)
        self._counts: Counter[int] = Counter()
        self._dry: Dry | None = None
        before = list(history)
        if params.penalizes:
            for token in before if window is None else before[-window:]:
                self._count(token)
        if params.dries:
            self._dry = Dry(params, n_vocab, breakers or {}, before)

    @cached_property  # greedy answers need none
    def _random(self) -> np.random.Generator:
        return np.random.default_rng(self.params.seed)

    @cached_property
    def _xtc_random(self) -> np.random.Generator:
        """XTC has its own, so that the other gives one number a token whatever the parameters are."""
        return np.random.default_rng(None if self.params.seed is None else [self.params.seed, 1])

    @property
    def complete(self) -> bool:
        """Whether a grammar says that the answer is whole and that nothing can follow."""
        return self._grammar is not None and self._grammar.complete

    @property
    def mu(self) -> float:
        """The surprise in bits that mirostat allows the next token."""
        return self._mu

    def accept(self, token: int) -> None:
        """Note that a token became part of the text."""
        if self.params.penalizes:
            self._count(token)
        if self._dry is not None:
            self._dry.accept(token)
        if self._grammar is not None:
            self._grammar.accept(token)

    def _count(self, token: int) -> None:
        if len(self._window) == self._window.maxlen:
            oldest = self._window[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._window.append(token)
        self._counts[token] += 1

    def sample(self, logits: Logits, i: int = 0, step: int = 0) -> int:
        """Choose a token from row i.

        A grammar writes -inf into the row for what it does not allow. Raises NumericError naming the step (0 is the
        first token of the answer) when the row holds NaN or +inf, or when no token is left: masked (-inf) entries alone
        are fine.
        """
        if not logits.finite(i):
            _check_row(logits.row(i), step)
        if self.params.greedy:
            return self._greedy(logits, i, step)
        left = self._candidates(logits, i, step)
        # one draw per token, even where a single candidate is left: the random stream then depends on the count only
        point = self._random.random()
        self._filter(left, self._xtc and self._xtc_random.random() < self.params.xtc_probability)
        token, probability = left.draw(point)
        if self.params.mirostat:
            self._mu += self.params.mirostat_eta * (self.params.mirostat_tau + float(np.log2(probability)))
        return token

    def distribution(self, logits: Logits, i: int = 0, step: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ids that `sample` chooses from and their probabilities, most likely first.

        With XTC, which is used for some tokens and not for others, the mixture of both. Raises NumericError as `sample`
        does.
        """
        if not logits.finite(i):
            _check_row(logits.row(i), step)
        if self.params.greedy:
            return np.array([self._greedy(logits, i, step)]), np.ones(1, np.float64)
        shares = ((True, self.params.xtc_probability), (False, 1.0 - self.params.xtc_probability))
        ways = shares if self._xtc else ((False, 1.0),)
        every: dict[int, float] = {}
        for with_xtc, share in ways:
            left = self._candidates(logits, i, step)
            self._filter(left, with_xtc)
            weights = left.likely().astype(np.float64)
            weights *= share / weights.sum()
            if len(ways) == 1:
                order = np.lexsort((left.ids, -weights))
                return left.ids[order], weights[order]
            for token, weight in zip(left.ids.tolist(), weights.tolist(), strict=True):
                every[token] = every.get(token, 0.0) + weight
        ids, found = np.array(list(every)), np.array(list(every.values()))
        order = np.lexsort((ids, -found))
        order = order[found[order] > 0.0]
        return ids[order], found[order]

    # -- the chain ----------------------------------------------------------------------------------------------------

    def _greedy(self, logits: Logits, i: int, step: int) -> int:
        """The most likely token after bias, penalties and DRY."""
        if self._bias_lowers and not self._counts and self._dry is None:
            token = logits.argmax(i)
            known = token < self._n_tokens and token not in self._bias
            if known and (self._grammar is None or self._grammar.allows(token)):
                return token
        left = self._fitting(logits, i, 1, step)
        if left is None:
            self._mask(logits, i)
            left = self._largest(logits, i, 1, step)
        return int(left.ids[0])

    def _candidates(self, logits: Logits, i: int, step: int) -> Candidates:
        """The tokens of row i before the first filter; after it, where that is top-k and can run natively."""
        top_k = self.params.top_k if self._filters[:1] == ("top_k",) else 0
        left = self._fitting(logits, i, top_k, step)
        if left is not None:
            return left
        self._mask(logits, i)
        if top_k:
            return self._largest(logits, i, top_k, step)
        row = logits.row(i)[: self._n_tokens]
        ids, values = self._changed(logits, i)
        if len(ids):
            inside = ids < self._n_tokens
            row = row.copy()
            row[ids[inside]] = values[inside]
        if row.min() == -np.inf:
            ids = np.flatnonzero(row > -np.inf)
            return _some(ids, row[ids], step)
        return Candidates(None, row)

    def _filter(self, left: Candidates, with_xtc: bool) -> None:
        """Run the rest of the chain."""
        params = self.params
        for name in self._filters:
            if len(left) == 1:
                return
            if name in _EDITS:
                tokens, edit = self._edit(name)
                places = left.places_of(np.array(sorted(tokens), np.int64))
                left.change(places, edit(left.ids[places], left.values[places].astype(np.float64)))
            elif name == "top_n_sigma":
                left.top_n_sigma(params.top_n_sigma)
            elif name == "top_k":
                left.top_k(params.top_k)
            elif name == "typ_p":
                left.typical_p(params.typical_p, params.min_keep)
            elif name == "top_p":
                left.top_p(params.top_p, params.min_keep)
            elif name == "min_p":
                left.min_p(params.min_p, params.min_keep)
            elif name == "xtc" and with_xtc:
                left.xtc(params.xtc_threshold, params.min_keep)
            elif name == "temperature":
                left.temper(params.temperature, params.dynatemp_range, params.dynatemp_exponent)
        if params.mirostat:
            left.surprise_below(self._mu)

    # -- changes of few logits ----------------------------------------------------------------------------------------

    def _mask(self, logits: Logits, i: int) -> None:
        if self._grammar is not None:
            self._grammar.mask(logits.row(i)[: self._n_tokens])

    def _edit(self, name: str) -> tuple[Iterable[int], _Edit]:
        """The tokens whose logits a sampler changes, and how: their ids (n,) and logits (n,) -> their new logits (n,)."""
        if name == "penalties":
            return self._counts.keys(), self._penalized
        costs = {} if self._dry is None else self._dry.penalties()

        def dried(ids: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
            lower: NDArray[np.float64] = values - np.array([costs.get(token, 0.0) for token in ids.tolist()])
            return lower

        return costs.keys(), dried

    def _penalized(self, ids: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        params = self.params
        counts = np.array([self._counts.get(token, 0) for token in ids.tolist()], np.float64)
        repeated = np.where(values <= 0.0, values * params.repeat_penalty, values / params.repeat_penalty)
        repeated -= counts * params.frequency_penalty + params.presence_penalty
        changed: NDArray[np.float64] = np.where(counts > 0, repeated, values)
        return changed

    def _changed(self, logits: Logits, i: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ids that are changed before the first filter, ascending, and their new logits."""
        edits = [self._edit(name) for name in self._edits]
        touched = sorted(set(self._bias).union(*(tokens for tokens, _ in edits)))
        ids = np.array(touched, np.int64)
        if not touched:
            return ids, np.zeros(0)
        values = logits.row(i)[ids].astype(np.float64)
        if self._bias:
            values += np.array([self._bias.get(token, 0.0) for token in touched])
        for _, edit in edits:
            values = edit(ids, values)
        return ids, values

    def _fitting(self, logits: Logits, i: int, k: int, step: int) -> Candidates | None:
        """The k largest that the grammar allows, asked about one by one; None where its mask is the quicker way.

        One question takes 3 us, a mask of 262,144 tokens 100 us, or 700 for wide classes of characters. Where
        questions were in vain, none are asked for some steps, twice as many each time.
        """
        if self._grammar is None or not 1 <= k <= _MOST_ASKED:
            return None
        if self._skips:
            self._skips -= 1
            return None
        ranked = self._largest(logits, i, min(_MOST_ASKED, self._n_vocab), step)
        places: list[int] = []
        for place, token in enumerate(ranked.ids.tolist()):
            if self._grammar.allows(token):
                places.append(place)
                if len(places) == k:
                    ranked.keep(np.array(places), in_order=True)
                    self._misses = 0
                    return ranked
            n_asked = place + 1
            if n_asked % _ROUND == 0 and n_asked * k > _MOST_ASKED * len(places):
                break  # at this rate it would take more questions than a mask is worth
        self._misses = min(self._misses + 1, _MOST_MISSES)
        self._skips = 2**self._misses - 1
        return None

    def _largest(self, logits: Logits, i: int, k: int, step: int) -> Candidates:
        """The k largest logits of row i after what is changed first, descending, ties by ascending id."""
        n_padding = self._n_vocab - self._n_tokens
        changed_ids, changed_values = self._changed(logits, i)
        n_changed = len(changed_ids)
        # of the k largest, those that nothing touches are among the k + n_changed largest of the row as it is
        top_ids, top_values = logits.top(i, min(k + n_changed + n_padding, self._n_vocab))
        ids, values = top_ids.astype(np.int64), top_values.astype(np.float64)
        if n_changed:
            untouched = ~np.isin(ids, changed_ids)
            ids = np.concatenate([ids[untouched], changed_ids])
            values = np.concatenate([values[untouched], changed_values])
            order = np.lexsort((ids, -values))
            ids, values = ids[order], values[order]
        keep = (ids < self._n_tokens) & (values > -np.inf)
        return _some(ids[keep][:k], values[keep][:k], step, in_order=True)


def _some(ids: NDArray[np.int64], values: NDArray[np.floating], step: int, in_order: bool = False) -> Candidates:
    if not len(ids):
        raise NumericError(f"no token is left to choose from at step {step}: every logit is -inf or banned")
    return Candidates(ids, values, in_order)


def _check_row(row: NDArray[np.float32], step: int) -> None:
    """Raise NumericError when a row (n_vocab,) holds NaN, +inf or nothing but -inf."""
    n_nan, n_inf = int(np.isnan(row).sum()), int(np.isposinf(row).sum())
    if n_nan or n_inf:
        what = f"{n_nan} NaN" if n_nan else f"{n_inf} +inf"
        raise NumericError(
            f"the logits of step {step} hold {what} among {len(row)} values; the answer ends here: "
            "the model file may be damaged, check it with `edgeinfer inspect` or pull it again"
        )
    if bool(np.isneginf(row).all()):
        raise NumericError(f"all {len(row)} logits of step {step} are -inf; the answer ends here")
