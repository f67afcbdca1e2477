"""The targets that `edgeinfer bench --concurrency` puts its load on, opened anew for each of their turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import SettingError
from ..evaluate.contest import Contestant
from ..evaluate.load_generator import Target
from ..evaluate.targets import HttpTarget, LLMTarget, word_ids
from ..settings import settings

if TYPE_CHECKING:
    from ..load import LLM

__all__ = ["contestants", "vocabulary"]


def vocabulary(model: str) -> tuple[list[int], int | None]:
    """The ids that prompts are made of, and the id they begin with where the file wants one."""
    from .. import store
    from ..model.gguf import GGUFFile
    from ..model.tokenizer import Tokenizer

    with GGUFFile.open(store.resolve(model, settings())) as file:
        tokenizer = Tokenizer.from_gguf(file)
        return word_ids(tokenizer), tokenizer.bos_id if tokenizer.add_bos else None


def contestants(
    load: Callable[..., LLM], model: str, concurrency: int, n_ctx: int, split: bool, others: Sequence[str]
) -> list[Contestant]:
    """The model itself, and then what it is compared with. Raises SettingError for a name that is none."""
    entered = [_ours(load, concurrency, n_ctx, split)]
    for other in dict.fromkeys(others):
        if other == "unsplit":
            entered.append(_ours(load, concurrency, n_ctx, False))
        elif other == "llamacpp":
            entered.append(_llamacpp(model, concurrency, n_ctx, entered[0]))
        elif other.startswith("http://"):
            entered.append(_address(other))
        else:
            raise SettingError(f"--vs is {other!r}; wanted unsplit, llamacpp or the http:// address of a server")
    names = [contestant.name for contestant in entered]
    if len(set(names)) != len(names):
        raise SettingError("--vs unsplit compares with --no-split, which was given too; leave one of them out")
    return entered


def _entered(name: str, opened: Callable[[Contestant], AbstractContextManager[Target]]) -> Contestant:
    """A contestant whose opener is given the contestant, to write down its settings."""
    contestant = Contestant(name, lambda: opened(contestant))
    return contestant


def _ours(load: Callable[..., LLM], concurrency: int, n_ctx: int, split: bool) -> Contestant:
    @contextmanager
    def opened(contestant: Contestant) -> Iterator[Target]:
        # As many positions as llama.cpp's server is given: a whole context for each request in flight.
        options: dict[str, Any] = {"n_kv": concurrency * n_ctx, "max_streams": concurrency, "split": split}
        with load(n_ctx, **options) as llm:
            n_threads = llm.threads.n_threads if llm.threads else None
            contestant.facts = {
                "n_ctx": n_ctx,
                "n_threads": n_threads,
                **options,
                "load_s": llm.load_s,
                "compile_s": llm.compile_s,
            }
            yield LLMTarget(llm.generate, contestant.name)

    return _entered("edgeinfer" if split else "edgeinfer unsplit", opened)


def _llamacpp(model: str, concurrency: int, n_ctx: int, ours: Contestant) -> Contestant:
    from .. import store
    from ..evaluate.llama_server import LlamaServer, ServerSettings
    from ..profile.threads import choose_threads

    chosen = settings()
    path = str(store.resolve(model, chosen))

    @contextmanager
    def opened(contestant: Contestant) -> Iterator[Target]:
        n_threads = ours.facts.get("n_threads") or choose_threads(None, chosen).n_threads
        with LlamaServer(ServerSettings(path, n_ctx, n_parallel=concurrency, n_threads=n_threads)) as server:
            contestant.facts = {"command": str(server.settings), "build": server.build, "n_threads": n_threads}
            yield HttpTarget(server.address, contestant.name)

    return _entered("llama.cpp server", opened)


def _address(address: str) -> Contestant:
    @contextmanager
    def opened(contestant: Contestant) -> Iterator[Target]:
        contestant.facts = {"address": address}
        yield HttpTarget(address, contestant.name)

    return _entered(address, opened)
