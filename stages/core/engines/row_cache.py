"""The key-value cache of a decoding batch.

Each row fills its own positions from 0 on, so that a row can end and another request can take its place at any step. Buffers are
allocated once.

Axes: B rows · S new tokens per row · K cache positions.
"""

from typing import Any

import numpy as np
import torch

_COPIED_ROWS = 64  # at once: the copies of all rows would need the memory of a layer
_CLEAR_AHEAD = 32  # positions: clearing them one by one would cost a pass over all layers in every step


class RowCache:
    """Keys and values of every layer, [rows, heads, positions + 1, width]; `lengths_B` positions of the rows in use are filled.

    The additional position takes what is written for padding. The model's attention calls `update`.
    """

    def __init__(self, rows: int, positions: int) -> None:
        self.rows, self.positions = rows, positions
        self.lengths_B = np.zeros(0, np.int64)
        self.buffers: list[list[torch.Tensor]] = []
        self._rows_B1 = self._at_BS = torch.empty(0)
        self._stop = self._clean = 0

    def reserve(self, at_BS: np.ndarray, device: torch.device, stop: int | None = None) -> int:
        """Set the positions of the next tokens of the rows in use, -1 for padding. Return how many positions attention sees.

        These are `stop`, or by default those up to the last of the new tokens.
        """
        self._stop = int(at_BS.max()) + 1 if stop is None else stop
        self._clear(self._stop)
        at_BS = np.where(at_BS < 0, self.positions, at_BS)
        self._at_BS = torch.from_numpy(at_BS).to(device)
        self._rows_B1 = torch.arange(len(at_BS), device=device)[:, None]
        return self._stop

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens' [B, heads, S, width] at the reserved positions, and return all positions that may be seen."""
        if layer == len(self.buffers):
            self.buffers.append([self._empty(states) for states in (keys, values)])
        for buffer, states in zip(self.buffers[layer], (keys, values), strict=True):
            buffer[self._rows_B1, :, self._at_BS] = states.transpose(1, 2)
        seen = [buffer[: len(keys), :, : self._stop] for buffer in self.buffers[layer]]
        return seen[0], seen[1]

    def _empty(self, states: torch.Tensor) -> torch.Tensor:
        buffer = states.new_empty(self.rows, states.shape[1], self.positions + 1, states.shape[3])
        buffer[:, :, : self._clean] = 0
        return buffer

    def _clear(self, stop: int) -> None:
        """Fill with zeros what attention sees for the first time: masked positions have weight zero, which a stray NaN survives.

        Pages that no row has reached take no memory.
        """
        if stop > self._clean:
            clean = min(self.positions, stop + _CLEAR_AHEAD)
            for buffer in (buffer for pair in self.buffers for buffer in pair):
                buffer[:, :, self._clean : clean] = 0
            self._clean = clean

    def arrange(self, sources_B: np.ndarray) -> None:
        """Put the row `sources_B[b]` into place b; -1 stands for a row that `fill` writes afterwards."""
        old_B = sources_B[sources_B >= 0]
        kept, filled = len(old_B), int(self.lengths_B[old_B].max(initial=0))
        if kept and not np.array_equal(old_B, np.flatnonzero(sources_B >= 0)):
            for buffer in (buffer for pair in self.buffers for buffer in pair):
                places = torch.from_numpy(np.flatnonzero(sources_B >= 0)).to(buffer.device)
                moved = buffer[:, :, :filled].index_select(0, torch.from_numpy(old_B).to(buffer.device))
                buffer[:, :, :filled].index_copy_(0, places, moved)
        self.lengths_B = np.where(sources_B >= 0, self.lengths_B[np.maximum(sources_B, 0)] if kept else 0, 0)

    def fill(self, places_R: np.ndarray, other: "RowCache", rows_R: np.ndarray, lengths_R: np.ndarray | None = None) -> None:
        """Copy rows of another cache, or their first positions, into these places."""
        lengths_R = other.lengths_B[rows_R] if lengths_R is None else lengths_R
        filled = int(lengths_R.max(initial=0))
        self._clear(filled)
        for layer, pair in enumerate(other.buffers):
            if layer == len(self.buffers):
                self.buffers.append([self._empty(buffer) for buffer in pair])
            for own, theirs in zip(self.buffers[layer], pair, strict=True):
                places, rows = (torch.from_numpy(indices).to(own.device) for indices in (places_R, rows_R))
                for to, source in zip(places.split(_COPIED_ROWS), rows.split(_COPIED_ROWS), strict=True):
                    own[:, :, :filled].index_copy_(0, to, theirs[:, :, :filled].index_select(0, source))
        self.lengths_B[places_R] = lengths_R
