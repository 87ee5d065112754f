"""Check samples, and pack them into rows and micro-batches for the trainer. Pure numpy and pyarrow.

A row is one prompt of one adapter followed by the tree of its completions (as many as fit). Each completion sees the prompt and
itself, and its positions continue from the prompt's end. Every token thus has exactly the context it was sampled in, while the
prompt is computed once for, say, 8 attempts, as is any beginning that several share. A micro-batch consists of rows of similar
length, padded on the right, in the order of the adapter stack. The last token of a completion is predicted but never an input.

Axes: S samples · B rows · L positions · U positions that predict a token · T response tokens · N adapters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import weights_sha256
from stages.core.training.prefix_tree import common, depth_first
from stages.core.training.still_groups import still_groups

PAD_TO = 8  # multiple for row lengths; CUDA's attention kernels require masks aligned to it
PASS_POSITIONS = 4096  # of a micro-batch that a CPU computes in one pass: fewer are not worth a pass for each adapter
ADAPTER_POSITIONS = 512  # nor are fewer than this for each of its adapters


@dataclass(frozen=True)
class Samples:
    """Columns of SAMPLES as arrays, only rows of the adapters in `names`; `slots_S` are their places in the stack.

    `tokens_N` are the response tokens of each adapter, the denominator of its loss. They count all its samples: in a part of an
    update that is cut by rows, more than are here.
    """

    names: tuple[str, ...]
    slots_S: np.ndarray
    prompts: list[list[int]]
    completions: list[list[int]]
    engine_logprobs: list[np.ndarray]
    advantages_S: np.ndarray
    tokens_N: np.ndarray


@dataclass(frozen=True)
class Row:
    """A prompt and completions of one adapter: `slot` in the stack, `samples` by number, `length` in positions."""

    slot: int
    samples: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class MicroBatch:
    """Arrays of one forward pass. The hidden state at `places_U[states_T[t]]` of the flattened [B * L] predicts `targets_T[t]`.

    Tokens are sorted by `states_T`: completions in a row share states as far as they agree. Position i of a row
    sees position j if j <= i < `ends_BL[j]`.
    """

    counts_N: tuple[int, ...]
    ids_BL: np.ndarray
    positions_BL: np.ndarray
    ends_BL: np.ndarray
    places_U: np.ndarray
    states_T: np.ndarray
    targets_T: np.ndarray
    samples_T: np.ndarray
    offsets_T: np.ndarray  # of a token in its completion
    branched: bool  # whether completions part in any row of the micro-batch, which requires a custom attention mask


def check_samples(adapters: Mapping[str, Adapter], samples: pa.Table) -> None:
    """Raise ValueError unless each row belongs to one of the adapters, comes from exactly these weights, and is complete."""
    named = set(zip(samples["adapter_id"].to_pylist(), samples["adapter_sha256"].to_pylist(), strict=True))
    digests = {adapter_id: weights_sha256(adapter.weights) for adapter_id, adapter in adapters.items()}
    for adapter_id, digest in sorted(named):
        if adapter_id not in digests:
            raise ValueError(f"samples of adapter {adapter_id!r}, which is not among {sorted(digests)}")
        if digest != digests[adapter_id]:
            raise ValueError(f"samples of {adapter_id} were written by weights {digest[:12]}, not {digests[adapter_id][:12]}")
    lengths = {name: pc.list_value_length(samples[name]) for name in ("prompt_ids", "completion_ids", "logprobs")}
    for name, lengths_S in lengths.items():
        if pc.any(pc.equal(lengths_S, 0)).as_py():
            raise ValueError(f"samples with empty {name}")
    if not lengths["completion_ids"].equals(lengths["logprobs"]):
        raise ValueError("samples with more or fewer logprobs than completion_ids")


def with_advantage(samples: pa.Table) -> pa.Table:
    """Return the rows of groups in which some advantage is not 0, in the table's order.

    The others add exactly 0 to a gradient without entropy bonus and KL penalty. A group belongs to one adapter in one role.
    """
    keys = list(zip(samples["adapter_id"].to_pylist(), _groups(samples), strict=True))
    advantages = samples["advantage"].to_pylist()
    learning = {key for key, advantage in zip(keys, advantages, strict=True) if advantage != 0}
    return samples.filter(pa.array([key in learning for key in keys], pa.bool_()))


def _groups(samples: pa.Table) -> list[tuple[str, str]]:
    """Return the group of each row by role: one adapter may play both, and a proposal without a baseline is a group itself."""
    return list(zip(samples["role"].to_pylist(), samples["group_id"].to_pylist(), strict=True))


def count_skipped(samples: pa.Table, adapter_id: str) -> dict[str, float]:
    """Count what `with_advantage` leaves out of an adapter's samples: groups and response tokens."""
    own = samples.filter(pc.equal(samples["adapter_id"], adapter_id))
    kept = with_advantage(own)
    groups = [len(set(_groups(rows))) for rows in (own, kept)]
    tokens = [response_tokens(rows).get(adapter_id, 0) for rows in (own, kept)]
    return {"skipped_groups": float(groups[0] - groups[1]), "skipped_tokens": float(tokens[0] - tokens[1])}


def varied(samples: pa.Table) -> frozenset[str]:
    """Return the adapters that take a step: some advantage is not 0, or centred rewards differ.

    `samples` are all samples of an update: a share of them, or those without the groups that are skipped, may be alike where
    all are not.
    """
    centred: dict[str, set[float]] = {}
    moved = set()
    read = (samples[name].to_pylist() for name in ("adapter_id", "centred", "advantage"))
    for adapter_id, value, advantage in zip(*read, strict=True):
        centred.setdefault(adapter_id, set()).add(value)
        if advantage != 0:
            moved.add(adapter_id)
    return frozenset(moved | {adapter_id for adapter_id, values in centred.items() if len(values) > 1})


def count(samples: pa.Table, adapter_id: str) -> dict[str, float]:
    """Count what is known before any pass: samples, tokens, groups and still ones, and whether the adapter is `varied`."""
    own = samples.filter(pc.equal(samples["adapter_id"], adapter_id))
    still = still_groups(own, ("role", "group_id"))["still"].to_pylist()
    return {
        "samples": float(len(own)),
        "response_tokens": float(sum(len(ids) for ids in own["completion_ids"].to_pylist())),
        "groups": float(len(still)),
        "zero_variance_groups": float(sum(still)),
        "varied": float(adapter_id in varied(own)),
    }


def response_tokens(samples: pa.Table) -> dict[str, int]:
    """Return the response tokens of each adapter's samples."""
    tokens: dict[str, int] = {}
    lengths = pc.list_value_length(samples["completion_ids"])
    for adapter_id, length in zip(samples["adapter_id"].to_pylist(), lengths.to_pylist(), strict=True):
        tokens[adapter_id] = tokens.get(adapter_id, 0) + length
    return tokens


def columns(names: Sequence[str], samples: pa.Table, tokens: Mapping[str, int]) -> Samples:
    """Return the rows of these adapters, in the table's order; `tokens` are the response tokens of all samples of each."""
    own = samples.filter(pc.is_in(samples["adapter_id"], pa.array(names, pa.string())))
    slots = {name: slot for slot, name in enumerate(names)}
    return Samples(
        names=tuple(names),
        slots_S=np.array([slots[adapter_id] for adapter_id in own["adapter_id"].to_pylist()]),
        prompts=own["prompt_ids"].to_pylist(),
        completions=own["completion_ids"].to_pylist(),
        engine_logprobs=[np.array(values, np.float64) for values in own["logprobs"].to_pylist()],
        advantages_S=own["advantage"].to_numpy(),
        tokens_N=np.array([tokens.get(name, 0) for name in names], np.float64),
    )


def engine_logprobs(batch: MicroBatch, samples: Samples) -> np.ndarray:
    """Return the engine's log-probability of every response token of the batch, [T]."""
    own = np.unique(batch.samples_T)
    values = [samples.engine_logprobs[sample] for sample in own]
    first = np.cumsum([0, *(len(one) for one in values)])
    found_T: np.ndarray = np.concatenate(values)[first[np.searchsorted(own, batch.samples_T)] + batch.offsets_T]
    return found_T


def pack_rows(
    slots_S: Sequence[int], prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], row_tokens: int
) -> list[Row]:
    """Pack all samples into rows. Equal prompts of an adapter share a row up to `row_tokens` (0: never share).

    A completion goes to the row of its prompt to which it adds the fewest positions, of those where it fits. One that adds none
    always fits.
    """
    rows: list[Row] = []
    own_rows: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for sample, (slot, prompt, completion) in enumerate(zip(slots_S, prompts, completions, strict=True)):
        indices, inputs = own_rows.setdefault((slot, tuple(prompt)), []), len(completion) - 1
        added = {index: inputs - _known(completions, rows[index], completion) for index in indices if row_tokens}
        fitting = {index: count for index, count in added.items() if not count or rows[index].length + count <= row_tokens}
        if fitting:
            best = min(fitting, key=lambda index: fitting[index])
            rows[best] = Row(slot, (*rows[best].samples, sample), rows[best].length + fitting[best])
        else:
            indices.append(len(rows))
            rows.append(Row(slot, (sample,), len(prompt) + inputs))
    return rows


def _known(completions: Sequence[Sequence[int]], row: Row, completion: Sequence[int]) -> int:
    """Return how many inputs of a completion stand in a row: the last token is never an input."""
    return min(
        len(completion) - 1,
        max(min(common(completions[other], completion), len(completions[other]) - 1) for other in row.samples),
    )


def micro_batches(rows: Sequence[Row], tokens: int) -> list[list[Row]]:
    """Sort rows by length and cut them so that count times longest stays within `tokens` (a longer row is alone).

    Adapters alternate among rows of equal length, which gives equal groups if the samples allow it.
    """
    turns: dict[int, int] = {}
    keys = []
    for row in rows:
        turns[row.slot] = turns.get(row.slot, 0) + 1
        keys.append((_padded(row.length), turns[row.slot], row.slot))
    batches: list[list[Row]] = []
    for index in sorted(range(len(rows)), key=keys.__getitem__):
        if not batches or (len(batches[-1]) + 1) * keys[index][0] > tokens:
            batches.append([])
        batches[-1].append(rows[index])
    return [sorted(batch, key=lambda row: row.slot) for batch in batches]


def passes(batch: Sequence[Row]) -> list[list[Row]]:
    """Cut a large micro-batch into the rows of each adapter, in the order of the stack; a small one stays whole.

    Activations then exist for one adapter at a time. A row attends to itself only and an adapter's gradient sums its own rows, so
    each pass computes what one pass of all rows computes, if `lay_out` pads it as the whole.
    """
    own = [[*rows] for _, rows in groupby(batch, key=lambda row: row.slot)]
    positions = len(batch) * _padded(max(row.length for row in batch))
    return own if positions > PASS_POSITIONS and positions >= ADAPTER_POSITIONS * len(own) else [[*batch]]


def lay_out(
    rows: Sequence[Row],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    num_adapters: int,
    pad_id: int,
    batch: Sequence[Row] = (),
) -> MicroBatch:
    """Return the arrays of rows that are in the order of the stack. One pass of a `batch` is padded as the whole batch."""
    whole = batch or rows
    length = _padded(max(row.length for row in whole))
    ids_BL = np.full((len(rows), length), pad_id, np.int64)
    positions_BL = np.tile(np.arange(length), (len(rows), 1))
    ends_BL = positions_BL + 1  # padding sees itself
    places, targets, samples, offsets = [], [], [], []
    for number, row in enumerate(rows):
        prompt = prompts[row.samples[0]]
        tree = depth_first([list(completions[sample][:-1]) for sample in row.samples])
        start, stop = len(prompt), len(prompt) + len(tree.ids_L)
        ids_BL[number, :start], ids_BL[number, start:stop] = prompt, tree.ids_L
        positions_BL[number, start:stop] = start + tree.depths_L
        ends_BL[number, :start], ends_BL[number, start:stop] = stop, start + tree.ends_L
        for sample, path in zip(row.samples, tree.paths, strict=True):
            # the first token is predicted from the prompt's end, the others from the token before them
            places.append(number * length + np.r_[start - 1, start + path])
            targets.append(np.asarray(completions[sample], np.int64))
            samples.append(np.full(len(path) + 1, sample))
            offsets.append(np.arange(len(path) + 1))
    counts_N = tuple(int(count) for count in np.bincount([row.slot for row in rows], minlength=num_adapters))
    places_T = np.concatenate(places)
    order_T = np.argsort(places_T, kind="stable")
    places_U, states_T = np.unique(places_T[order_T], return_inverse=True)
    targets_T, samples_T, offsets_T = (np.concatenate(parts)[order_T] for parts in (targets, samples, offsets))
    branched = any(_branched(row, prompts, completions) for row in whole)
    return MicroBatch(counts_N, ids_BL, positions_BL, ends_BL, places_U, states_T, targets_T, samples_T, offsets_T, branched)


def _branched(row: Row, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> bool:
    """Return whether a row is more than its prompt and its longest completion."""
    return row.length > len(prompts[row.samples[0]]) + max(len(completions[sample]) for sample in row.samples) - 1


def _padded(length: int) -> int:
    return -(-length // PAD_TO) * PAD_TO
