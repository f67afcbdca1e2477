"""The parameters that one answer is sampled with, checked once."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from ..errors import SettingError

__all__ = ["SamplingArgs", "SamplingParams", "merged"]


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and when the answer ends. Defaults are llama.cpp's.

    temperature        0 takes the most likely token (greedy); above 0 the logits are divided by it
    top_k              only the k most likely tokens; 0 is off
    top_p              the most likely tokens until their probabilities add up to p; 1 is off, 0 leaves one token
    min_p              only tokens at least p times as likely as the most likely one; 0 is off, 1 leaves the most likely
    repeat_penalty     logits of tokens seen among the last repeat_last_n are divided by it (times it if negative); 1 is
    off repeat_last_n      how far back the three penalties look, prompt included; 0 is off, -1 is everything
    presence_penalty   subtracted once from the logit of a token seen there; 0 is off frequency_penalty  subtracted for
    each time the token was seen there; 0 is off logit_bias         {token id: number added to its logit}; -inf bans the
    token seed               None takes a new one; the same seed, prompt and parameters give the same answer max_tokens
    most tokens of the answer; None is no limit but the context stop               the text ends before the first of
    these strings (one string, or several; empty ones are ignored) ignore_eos         go on to the limit: the model's
    end tokens are banned from sampling, as in llama.cpp

    Raises SettingError, naming the parameter, for a value that cannot be used.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._set("temperature", _number("temperature", self.temperature, 0.0, math.inf))
        self._set("top_k", _whole("top_k", self.top_k, 0, "0 (off) or more"))
        self._set("top_p", _number("top_p", self.top_p, 0.0, 1.0))
        self._set("min_p", _number("min_p", self.min_p, 0.0, 1.0))
        self._set("repeat_penalty", _number("repeat_penalty", self.repeat_penalty, 0.0, math.inf, "a number above 0"))
        if self.repeat_penalty < 1e-6:  # its inverse is a factor of negative logits
            raise SettingError(f"repeat_penalty is {self.repeat_penalty!r}; wanted a number above 0 (1 is off)")
        self._set("repeat_last_n", _whole("repeat_last_n", self.repeat_last_n, -1, "-1 (everything), 0 (off) or more"))
        for name in ("presence_penalty", "frequency_penalty"):
            self._set(name, _number(name, getattr(self, name), -math.inf, math.inf))
        self._set("logit_bias", _bias(self.logit_bias))
        if self.seed is not None:
            self._set("seed", _whole("seed", self.seed, 0, "0 or more, or None for a new one"))
        if self.max_tokens is not None:
            self._set("max_tokens", _whole("max_tokens", self.max_tokens, 1, "at least 1, or None for no limit"))
        self._set("stop", _stops(self.stop))
        if not isinstance(self.ignore_eos, bool):
            raise SettingError(f"ignore_eos is {self.ignore_eos!r}; wanted True or False")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def penalizes(self) -> bool:
        """Whether any of the three penalties is on."""
        off = self.repeat_penalty == 1.0 and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0
        return self.repeat_last_n != 0 and not off


class SamplingArgs(TypedDict, total=False):
    """The keyword arguments that stand for the fields of SamplingParams."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int | None
    stop: str | Iterable[str] | None
    ignore_eos: bool


def merged(params: SamplingParams | None, sampling: Mapping[str, Any]) -> SamplingParams:
    """`params`, or the defaults, with `sampling` on top. Raises SettingError for an unknown name or a bad value."""
    known = [entry.name for entry in fields(SamplingParams)]
    for name in sampling:
        if name not in known:
            raise SettingError(f"there is no sampling parameter {name!r}; wanted one of {', '.join(known)}")
    return replace(params or SamplingParams(), **sampling)


def _number(name: str, value: Any, low: float, high: float, wanted: str = "") -> float:
    wanted = wanted or (f"a number from {low:g} to {high:g}" if math.isfinite(high) else "a number")
    if low == 0.0 and high == math.inf and wanted == "a number":
        wanted = "a number, 0 or above"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise SettingError(f"{name} is {value!r}; wanted {wanted}")
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high:
        raise SettingError(f"{name} is {value!r}; wanted {wanted}")
    return number


def _whole(name: str, value: Any, low: int, wanted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise SettingError(f"{name} is {value!r}; wanted a whole number, {wanted}")
    return int(value)


def _bias(value: Any) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise SettingError(f"logit_bias is {value!r}; wanted a mapping of token ids to numbers")
    clean: dict[int, float] = {}
    for key, bias in value.items():
        token = _whole("a token id of logit_bias", key, 0, "0 or more")
        banned = isinstance(bias, float) and bias == -math.inf
        clean[token] = (
            bias if banned else _number(f"logit_bias[{token}]", bias, -math.inf, math.inf, "a number or -inf")
        )
    return clean


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable):
        raise SettingError(f"stop is {value!r}; wanted a string or a list of strings")
    stops = tuple(value)
    for i, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise SettingError(f"stop[{i}] is {stop!r}; wanted a string")
    return tuple(stop for stop in stops if stop)
