"""The parameters that one answer is sampled with, checked once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from ..errors import SettingError
from .checks import biases, json_text, number, sampler_names, strings, text, whole

__all__ = ["GRAMMARS", "SAMPLERS", "SamplingArgs", "SamplingParams", "merged"]

GRAMMARS = ("json_schema", "regex", "grammar")  # the fields that say what an answer must look like
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and when the answer ends. Names and defaults are llama.cpp's.

    - temperature: 0 takes the most likely token (greedy, nothing below is looked at but penalties, DRY, bias and
      grammar); above 0 the logits are divided by it
    - dynatemp_range, dynatemp_exponent: the temperature goes from temperature - range to temperature + range with
      (entropy / highest possible entropy) ** exponent; range 0 is off
    - top_k: only the k most likely tokens; 0 is off
    - top_p: the most likely tokens until their probabilities add up to p; 1 is off, 0 leaves one token
    - min_p: only tokens at least p times as likely as the most likely one; 0 is off, 1 leaves the most likely
    - typical_p: the tokens whose surprise is nearest to the expected one (the entropy), until their probabilities add
      up to more than p; 1 is off
    - top_n_sigma: only tokens whose logit is at most n standard deviations below the largest; -1 and 0 are off
    - xtc_probability, xtc_threshold: so often, all tokens at least so likely leave but the least likely of them;
      probability 0 and a threshold above 0.5 are off
    - min_keep: top_p, min_p, typical_p and xtc leave at least so many tokens
    - mirostat, mirostat_tau, mirostat_eta: 2 keeps the surprise near tau bits with learning rate eta; it takes the place
      of everything but bias, grammar and temperature; 0 is off
    - repeat_penalty: logits of tokens seen among the last repeat_last_n are divided by it (times it if negative); 1 is off
    - repeat_last_n: how far back the three penalties look, prompt included; 0 is off, -1 is everything
    - presence_penalty: subtracted once from the logit of a token seen there; 0 is off
    - frequency_penalty: subtracted for each time that the token was seen there; 0 is off
    - dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n: a token that would repeat the sequence of n
      tokens before it, n at least the allowed length, loses multiplier * base ** (n - allowed length); looks back
      last_n tokens, prompt included (-1 is everything); multiplier 0 is off
    - dry_sequence_breakers: a repeated sequence does not reach over these strings
    - samplers: which of penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc and temperature are used and in
      which order, as a list or in one string with ";" between
    - logit_bias: {token id: number added to its logit}; -inf bans the token
    - seed: None takes a new one; the same seed, prompt and parameters give the same answer
    - max_tokens: most tokens of the answer; None is no limit but the context
    - stop: the text ends before the first of these strings (one string, or several; empty ones are ignored)
    - ignore_eos: go on to the limit: the model's end tokens are banned from sampling, as in llama.cpp
    - json_schema, regex, grammar: the answer is JSON that fits the schema (a dict, or its JSON text; {} is any JSON), or
      matches the regular expression as a whole, or the grammar (GBNF, or Lark as llguidance reads it)

    Raises SettingError, naming the parameter, for a value that cannot be used.
    """

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = _BREAKERS
    samplers: tuple[str, ...] = SAMPLERS
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name, low, high in _NUMBERS:
            self._set(name, number(name, getattr(self, name), low, high))
        if self.repeat_penalty < 1e-6:  # its inverse is a factor of negative logits
            raise SettingError(f"repeat_penalty is {self.repeat_penalty!r}; wanted a number above 0 (1 is off)")
        if self.top_n_sigma < 0.0 and self.top_n_sigma != -1.0:
            raise SettingError(f"top_n_sigma is {self.top_n_sigma!r}; wanted a number above 0, or -1 (off)")
        for name, least, wanted in _WHOLES:
            self._set(name, whole(name, getattr(self, name), least, wanted))
        if self.mirostat not in (0, 2):
            raise SettingError(
                f"mirostat is {self.mirostat!r}; wanted 0 (off) or 2 (version 2; version 1 is not offered)"
            )
        self._set("dry_sequence_breakers", strings("dry_sequence_breakers", self.dry_sequence_breakers))
        self._set("samplers", sampler_names(self.samplers, SAMPLERS))
        self._set("logit_bias", biases(self.logit_bias))
        if self.seed is not None:
            self._set("seed", whole("seed", self.seed, 0, "0 or more; left out, a new one is taken"))
        if self.max_tokens is not None:
            self._set("max_tokens", whole("max_tokens", self.max_tokens, 1, "at least 1; left out, there is no limit"))
        self._set("stop", strings("stop", self.stop))
        if not isinstance(self.ignore_eos, bool):
            raise SettingError(f"ignore_eos is {self.ignore_eos!r}; wanted True or False")
        if self.json_schema is not None:
            self._set("json_schema", json_text("json_schema", self.json_schema))
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                self._set(name, text(name, getattr(self, name)))
        chosen = [name for name in GRAMMARS if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise SettingError(f"{' and '.join(chosen)} are both given; wanted at most one of them")
        if chosen and self.ignore_eos:
            raise SettingError(f"ignore_eos goes on past the end of what {chosen[0]} allows; wanted one of the two")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def seeded(self, seed: int) -> SamplingParams:
        """The same with another seed; all else was checked when this was made."""
        twin = copy(self)
        twin._set("seed", seed)
        return twin

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0 and (self.dynatemp_range == 0.0 or not self.uses("temperature"))

    @property
    def penalizes(self) -> bool:
        """Whether any of the three penalties is on."""
        off = self.repeat_penalty == 1.0 and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0
        return self.repeat_last_n != 0 and not off and self.uses("penalties")

    @property
    def dries(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0 and self.uses("dry")

    @property
    def constrained(self) -> bool:
        """Whether a schema, a regular expression or a grammar says what the answer may be."""
        return self.json_schema is not None or self.regex is not None or self.grammar is not None

    def uses(self, sampler: str) -> bool:
        """Whether the chain has the sampler at all: mirostat takes the place of all but temperature."""
        return sampler in self.samplers and self.mirostat == 0

    @property
    def filters(self) -> tuple[str, ...]:
        """The samplers that do something, in order."""
        if self.mirostat:
            return ("temperature",)
        on = {
            "penalties": self.penalizes,
            "dry": self.dries,
            "top_n_sigma": self.top_n_sigma > 0.0,
            "top_k": self.top_k > 0,
            "typ_p": self.typical_p < 1.0,
            "top_p": self.top_p < 1.0,
            "min_p": self.min_p > 0.0,
            "xtc": self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5,
            "temperature": self.temperature != 1.0 or self.dynatemp_range > 0.0,
        }
        return tuple(name for name in self.samplers if on[name])


_NUMBERS = (  # name, least, most
    ("temperature", 0.0, math.inf),
    ("dynatemp_range", 0.0, math.inf),
    ("dynatemp_exponent", 0.0, math.inf),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("top_n_sigma", -math.inf, math.inf),
    ("xtc_probability", 0.0, 1.0),
    ("xtc_threshold", 0.0, 1.0),
    ("mirostat_tau", 0.0, math.inf),
    ("mirostat_eta", 0.0, 1.0),
    ("repeat_penalty", -math.inf, math.inf),
    ("presence_penalty", -math.inf, math.inf),
    ("frequency_penalty", -math.inf, math.inf),
    ("dry_multiplier", 0.0, math.inf),
    ("dry_base", 1.0, math.inf),
)
_WHOLES = (  # name, least, what is wanted
    ("top_k", 0, "0 (off) or more"),
    ("min_keep", 0, "0 or more"),
    ("mirostat", 0, "0 (off) or 2"),
    ("repeat_last_n", -1, "-1 (everything), 0 (off) or more"),
    ("dry_allowed_length", 1, "1 or more"),
    ("dry_penalty_last_n", -1, "-1 (everything), 0 (off) or more"),
)


class SamplingArgs(TypedDict, total=False):
    """The keyword arguments that stand for the fields of SamplingParams."""

    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Iterable[str] | None
    samplers: str | Iterable[str]
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int | None
    stop: str | Iterable[str] | None
    ignore_eos: bool
    json_schema: str | Mapping[str, Any] | bool | None
    regex: str | None
    grammar: str | None


_KNOWN = tuple(entry.name for entry in fields(SamplingParams))
_DEFAULTS = SamplingParams()


def merged(params: SamplingParams | None, sampling: Mapping[str, Any]) -> SamplingParams:
    """`params`, or the defaults, with `sampling` on top. Raises SettingError for an unknown name or a bad value."""
    for name in sampling:
        if name not in _KNOWN:
            raise SettingError(f"there is no sampling parameter {name!r}; wanted one of {', '.join(_KNOWN)}")
    params = params or _DEFAULTS
    return replace(params, **sampling) if sampling else params
