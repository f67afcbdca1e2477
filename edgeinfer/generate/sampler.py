"""The sampler chain: one row of logits -> one token id.

The order is llama.cpp's default: logit bias, penalties, top-k, top-p, min-p, temperature, draw. Temperature comes last,
so it shapes the choice among the tokens that are left and never which tokens are left. Bias -inf, ignore_eos and ids
that no token has are bans: they leave before anything else. At least one candidate always remains after each filter.

With top_k > 0 or temperature 0 only the few largest logits ever reach Python (`Logits.top`); the whole row is looked at
only where top_k is off or a row is not finite.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..engine.types import Logits
from ..errors import NumericError, SettingError
from .params import SamplingParams

__all__ = ["Sampler"]

_FIRST_SORT = 256  # how many of a whole row are sorted first to find top-p: enough for nearly every row


class Sampler:
    """Chooses tokens for one answer; remembers what the penalties look back on, and its random generator.

    n_vocab is the width of a row, n_tokens how many of its ids are tokens (rows of padding are never chosen), banned
    are ids that are never chosen (the end tokens, with ignore_eos).
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        n_tokens: int | None = None,
        banned: Iterable[int] = (),
        history: Iterable[int] = (),
    ) -> None:
        self.params = params
        self._n_vocab = n_vocab
        self._n_tokens = n_vocab if n_tokens is None else min(n_tokens, n_vocab)
        self._bias = dict(params.logit_bias)
        for token in self._bias:
            if token >= n_vocab:
                raise SettingError(f"logit_bias names token {token}; the model's ids end at {n_vocab - 1}")
        for token in banned:
            self._bias[token] = -np.inf
        self._bias_lowers = all(
            bias <= 0.0 for bias in self._bias.values()
        )  # then a best token that has none stays best
        self._random = np.random.default_rng(params.seed)
        window = None if params.repeat_last_n < 0 else params.repeat_last_n
        self._window: deque[int] = deque(maxlen=window)
        self._counts: Counter[int] = Counter()
        if params.penalizes:
            for token in history if window is None else list(history)[-window:]:
                self.accept(token)

    def accept(self, token: int) -> None:
        """Note that a token became part of the text."""
        if not self.params.penalizes:
            return
        if len(self._window) == self._window.maxlen:
            oldest = self._window[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._window.append(token)
        self._counts[token] += 1

    def sample(self, logits: Logits, i: int = 0, step: int = 0) -> int:
        """Choose a token from row i.

        Raises NumericError naming the step (0 is the first token of the answer) when the row holds NaN or +inf, or when
        no token is left: masked (-inf) entries alone are fine.
        """
        if not logits.finite(i):
            _check_row(logits.row(i), step)
        if self.params.temperature == 0.0:
            if self._bias_lowers and not self._counts:
                token = logits.argmax(i)
                if token < self._n_tokens and token not in self._bias:
                    return token
            ids, _ = self._largest(logits, i, 1, step)
            return int(ids[0])
        ids, probabilities = self._distribution(logits, i, step)
        # one draw per token, even where a single candidate is left: the random stream then depends on the count only
        point = self._random.random() * probabilities.sum()
        place = int(np.searchsorted(np.cumsum(probabilities), point, side="right"))
        return int(ids[min(place, len(ids) - 1)])

    def distribution(self, logits: Logits, i: int = 0, step: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ids that `sample` chooses from and their probabilities, most likely first.

        Raises NumericError as `sample` does.
        """
        if not logits.finite(i):
            _check_row(logits.row(i), step)
        if self.params.temperature == 0.0:
            ids, _ = self._largest(logits, i, 1, step)
            return ids, np.ones(1, np.float64)
        ids, probabilities = self._distribution(logits, i, step)
        order = np.lexsort((ids, -probabilities))
        return ids[order], probabilities[order] / probabilities.sum()

    def _distribution(self, logits: Logits, i: int, step: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Candidates of row i after the whole chain and their probabilities (not normalised), float64."""
        params = self.params
        if params.top_k:
            ids, values = self._largest(logits, i, params.top_k, step)
        else:
            ids, values = self._whole_row(logits, i, step)
        if params.top_p < 1.0 and len(ids) > 1:
            ids, values = _top_p(ids, values, params.top_p, in_order=bool(params.top_k))
        best = values.max()
        if params.min_p > 0.0:
            keep = values >= best + np.log(params.min_p)
            ids, values = ids[keep], values[keep]
        return ids, np.exp((values - best) / params.temperature)

    def _changed(self, row: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ids that bias and penalties touch, ascending, and their logits after both. row is (n_vocab,)."""
        params = self.params
        touched = sorted(self._bias.keys() | self._counts.keys())
        ids = np.array(touched, np.int64)
        values = row[ids].astype(np.float64)
        values += np.array([self._bias.get(token, 0.0) for token in touched])
        counts = np.array([self._counts.get(token, 0) for token in touched], np.float64)
        repeated = np.where(values <= 0.0, values * params.repeat_penalty, values / params.repeat_penalty)
        repeated -= counts * params.frequency_penalty + params.presence_penalty
        return ids, np.where(counts > 0, repeated, values)

    def _largest(self, logits: Logits, i: int, k: int, step: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The k largest logits of row i after bias and penalties, descending, ties by ascending id."""
        n_padding = self._n_vocab - self._n_tokens
        n_changed = len(self._bias.keys() | self._counts.keys())
        # of the k largest, those that nothing touches are among the k + n_changed largest of the row as it is
        top_ids, top_values = logits.top(i, min(k + n_changed + n_padding, self._n_vocab))
        ids, values = top_ids.astype(np.int64), top_values.astype(np.float64)
        if n_changed:
            changed_ids, changed_values = self._changed(logits.row(i))
            untouched = ~np.isin(ids, changed_ids)
            ids = np.concatenate([ids[untouched], changed_ids])
            values = np.concatenate([values[untouched], changed_values])
            order = np.lexsort((ids, -values))
            ids, values = ids[order], values[order]
        keep = (ids < self._n_tokens) & (values > -np.inf)
        return _some(ids[keep][:k], values[keep][:k], step)

    def _whole_row(self, logits: Logits, i: int, step: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """All logits of row i after bias and penalties, by ascending id."""
        row = logits.row(i)
        values = row.astype(np.float64)
        if self._bias or self._counts:
            ids, changed = self._changed(row)
            values[ids] = changed
        values = values[: self._n_tokens]
        ids = np.flatnonzero(values > -np.inf)
        return _some(ids, values[ids], step)


def _some(
    ids: NDArray[np.int64], values: NDArray[np.float64], step: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if not len(ids):
        raise NumericError(f"no token is left to choose from at step {step}: every logit is -inf or banned")
    return ids, values


def _top_p(
    ids: NDArray[np.int64], values: NDArray[np.float64], top_p: float, in_order: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The fewest most likely candidates whose probabilities reach top_p, at least one, most likely first."""
    likely = np.exp(values - values.max())
    target = top_p * likely.sum()
    n_sorted = len(ids) if in_order else min(_FIRST_SORT, len(ids))
    while True:
        if in_order:
            order = np.arange(len(ids))
        else:
            order = _largest_first(ids, values, n_sorted)
        reached = np.cumsum(likely[order])
        n_keep = int(np.searchsorted(reached, target, side="left")) + 1
        if n_keep <= len(order) or len(order) == len(ids):
            order = order[: min(n_keep, len(order))]
            return ids[order], values[order]
        n_sorted = min(n_sorted * 16, len(ids))


def _largest_first(ids: NDArray[np.int64], values: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """The places of (at least) the n largest values, descending, ties by ascending id."""
    if n < len(ids):
        edge = np.partition(values, len(ids) - n)[len(ids) - n]
        places = np.flatnonzero(values >= edge)  # all that tie with the n-th are taken: the lowest id must win
    else:
        places = np.arange(len(ids))
    order: NDArray[np.int64] = places[np.lexsort((ids[places], -values[places]))]
    return order


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
