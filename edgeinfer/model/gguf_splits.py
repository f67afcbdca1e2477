"""Shards -> one model: finds the files of a split model beside the one that was named, and refuses a set that lies.

A split model is several GGUF files, each a sound one with a part of the tensors. `split.no` (from 0) and `split.count`
say which part; the first carries all other metadata. By custom they are named NAME-00001-of-00003.gguf: the names lead
to the files, their content says what they are. Must not know what a tensor is for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import ModelFileError, NotFoundError, SettingError
from .gguf_shard import Shard

__all__ = ["complete"]

MAX_SHARDS = 4096  # far above any honest model, which has at most some hundreds
_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)


def complete(given: Sequence[Shard]) -> list[Shard]:
    """All shards of the model that `given` belong to, in order: the given ones where they are all, else those beside it.

    A model in one file gives that file. Raises ModelFileError when a shard is missing, is there twice, or belongs to
    another model, SettingError when a whole model is among several files; every shard that was opened here is closed then.
    """
    first = given[0]
    if len(given) > 1:
        for shard in given:
            if _place(shard)[1] == 1:
                raise SettingError(
                    f"{shard.path} is a whole model, not a shard of one; {len(given)} files were given, "
                    "wanted it alone or the shards of one model"
                )
    number, count = _place(first)
    if count == 1:
        return [first]
    opened: list[Shard] = []
    try:
        if len(given) > 1:
            shards = list(given)
        else:
            opened = _beside(first, number, count)
            shards = [first, *opened]
        return _checked(shards, count)
    except BaseException:
        for shard in opened:
            shard.close()
        raise


def _place(shard: Shard) -> tuple[int, int]:
    """(number from 0, count) by the file's own word; (0, 1) for a model in one file."""
    metadata = shard.header.metadata
    count = metadata.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= MAX_SHARDS:
        raise ModelFileError(
            f"{shard.path}: split.count is {count!r:.40}; wanted the number of shards, 1 to {MAX_SHARDS}"
        )
    count = max(count, 1)  # 0 is written for a model that was not split
    number = metadata.get("split.no", 0 if count == 1 else None)
    if type(number) is not int or not 0 <= number < count:
        raise ModelFileError(f"{shard.path}: split.no is {number!r:.40}; wanted the shard's number, below {count}")
    return number, count


def _beside(first: Shard, number: int, count: int) -> list[Shard]:
    """Open the other shards, by the name of one of them."""
    match = _NAME.fullmatch(first.path.name)
    example = f"NAME-{number + 1:05d}-of-{count:05d}.gguf"
    if not match:
        raise ModelFileError(
            f"{first.path} is shard {number + 1} of {count}, but its name does not lead to the others; "
            f"name it {example} with the others beside it, or give all {count} files"
        )
    if int(match[3]) != count:
        raise ModelFileError(
            f"{first.path} is shard {number + 1} of {count} by its own word, but its name says of {int(match[3])}; "
            f"wanted {example}: one of the two is wrong, download the model again"
        )
    paths = [first.path.with_name(f"{match[1]}-{i + 1:05d}-of-{match[3]}{match[4]}") for i in range(count)]
    missing = [path.name for path in paths if not os.path.exists(path)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelFileError(
            f"{first.path} is shard {number + 1} of {count}, and {len(missing)} of them {'is' if len(missing) == 1 else 'are'} "
            f"missing beside it: {', '.join(missing[:3])}{more}; download them into the same folder"
        )
    opened: list[Shard] = []
    try:
        for path in paths:
            if path.name != first.path.name:
                opened.append(Shard.open(path))
    except NotFoundError as gone:
        _close(opened)
        raise ModelFileError(f"{gone}, though it was just there; is the model being replaced?") from None
    except BaseException:
        _close(opened)
        raise
    return opened


def _checked(shards: Sequence[Shard], count: int) -> list[Shard]:
    """The shards in order. Raises ModelFileError unless they are the parts of one model, each once."""
    by_number: dict[int, Shard] = {}
    for shard in shards:
        number, its_count = _place(shard)
        if its_count != count:
            raise ModelFileError(
                f"{shard.path} is {f'one of {its_count} shards' if its_count > 1 else 'a whole model'}, "
                f"but {shards[0].path} is one of {count}: they belong to different models"
            )
        if number in by_number:
            raise ModelFileError(
                f"{by_number[number].path} and {shard.path} are both shard {number + 1} of {count}; "
                "one is a copy under another's name, or of another model: download the right one"
            )
        by_number[number] = shard
    if missing := [f"{n + 1}" for n in range(count) if n not in by_number]:
        raise ModelFileError(
            f"shard {', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''} of {count} is missing among the "
            f"files of {shards[0].path.name}; give all {count}"
        )
    ordered = [by_number[n] for n in range(count)]
    _same_model(ordered)
    return ordered


def _same_model(ordered: Sequence[Shard]) -> None:
    """Refuse shards that contradict each other: repeated tensors, another total, another family."""
    head = ordered[0].header
    arch = head.metadata.get("general.architecture")
    owner: dict[str, Path] = {}
    for shard in ordered:
        metadata = shard.header.metadata
        its_arch = metadata.get("general.architecture", arch)
        if its_arch != arch:
            raise ModelFileError(
                f"{shard.path} is of family {its_arch!r:.40}, but {ordered[0].path} "
                f"{f'of {arch!r:.40}' if arch is not None else 'names none'}: different models"
            )
        for name in shard.header.tensors:
            if name in owner:
                raise ModelFileError(
                    f"tensor {name!r} is in {owner[name]} and again in {shard.path}: they belong to different models"
                )
            owner[name] = shard.path
        total = metadata.get("split.tensors.count", len(owner))
        if type(total) is not int or total != head.metadata.get("split.tensors.count", total):
            raise ModelFileError(
                f"{shard.path}: split.tensors.count is {total!r:.40}, but {ordered[0].path} says "
                f"{head.metadata.get('split.tensors.count')!r:.40}: they belong to different models"
            )
    total = head.metadata.get("split.tensors.count", len(owner))
    if total != len(owner):
        raise ModelFileError(
            f"{ordered[0].path}: its {len(ordered)} shards hold {len(owner)} tensors; wanted {total!r:.40} "
            "(split.tensors.count): a shard is damaged or of another model"
        )


def _close(shards: Sequence[Shard]) -> None:
    for shard in shards:
        shard.close()
