"""A lane's rows of logits, and the questions about them, answered natively."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingError
from ..plan.fields import SCAN_BLOCK
from ..runtime.arena import aligned
from ..runtime.library import KernelLibrary

__all__ = ["LOGITS_KERNELS", "NativeLogits"]

LOGITS_KERNELS = ("logits.top_k",)
_ROW, _COUNT, _TOP, _IDS, _VALUES = range(5)


class NativeLogits:
    """Rows of logits (n, n_vocab) of the lane's last forward; valid until its next one."""

    def __init__(self, library: KernelLibrary, n_vocab: int):
        self.n_vocab = n_vocab
        self._rows: NDArray[np.float32] = np.zeros((0, n_vocab), np.float32)
        self._best: NDArray[np.float32] = np.zeros((0, 3), np.float32)
        self._n = 0
        self._largest: list[int] | None = None  # of each row: of all rows at once, when the first is asked for
        self._all_finite: list[bool] = []
        self._record = aligned(8)
        self._address = int(self._record.ctypes.data)
        self._top = library.function(LOGITS_KERNELS[0])

    def show(self, rows: NDArray[np.float32], n: int, best: NDArray[np.float32]) -> NativeLogits:
        """Point at the first n rows of a buffer, and at what the program's step `scan_merge` says of each."""
        self._rows, self._n, self._best, self._largest = rows, n, best, None
        return self

    def __len__(self) -> int:
        return self._n

    def _checked(self, i: int) -> int:
        if not -self._n <= i < self._n:
            raise SettingError(f"row {i} of the logits was asked for; the last forward gave {self._n}")
        return i % self._n

    def row(self, i: int) -> NDArray[np.float32]:
        """Row i (n_vocab,): a view, copy it to keep it."""
        return self._rows[self._checked(i), : self.n_vocab]

    def _look(self) -> list[int]:
        """The largest of each row, of all rows."""
        if self._largest is None:
            rows = self._best[: self._n, :3].tolist()
            self._largest = [int(block) * SCAN_BLOCK + int(place) for block, place, _ in rows]
            self._all_finite = [finite == 1.0 for _, _, finite in rows]
        return self._largest

    def argmax(self, i: int) -> int:
        """The id of the largest logit, the lowest among equals; as the forward left them, whatever is masked since."""
        return self._look()[self._checked(i)]

    def finite(self, i: int) -> bool:
        """Whether row i holds neither NaN nor infinity; as the forward left it."""
        self._look()
        return self._all_finite[self._checked(i)]

    def top(self, i: int, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The k largest logits, descending, equal ones by ascending id: ids (k,) and values (k,)."""
        k = max(1, min(k, self.n_vocab))
        ids, values = np.empty(k, np.int64), np.empty(k, np.float32)
        self._record[_ROW] = self._rows.ctypes.data + self._checked(i) * self._rows.strides[0]
        self._record[_COUNT] = self.n_vocab
        self._record[_TOP], self._record[_IDS], self._record[_VALUES] = k, ids.ctypes.data, values.ctypes.data
        self._top(self._address, 0, 0, 1)
        return ids.astype(np.int32), values
