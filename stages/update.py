"""Update: take one policy-gradient step for each adapter on its own samples.

An update can be cut in two ways. By adapters: a part is a group of adapters, and takes their steps. By rows: a part is a share of
the rows of all adapters, and computes the gradients of these rows; the steps follow from the sums of the gradients.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.lora.adapter import Adapter, Gradient
from stages.core.population import Member
from stages.core.shards import Shard
from stages.core.training.packing import count, count_skipped, response_tokens, varied, with_advantage
from stages.core.training.protocol import Stepper, Trainer, Update, Updater


def update(
    adapters: Mapping[str, Adapter], members: Mapping[str, tuple[str, str]], samples: pa.Table, trainer: Updater
) -> tuple[dict[str, Adapter], pa.Table]:
    """Return the adapters that took a step, by member id, and METRICS of the step.

    `adapters` maps adapter ids to their weights; `members` maps each of those ids to its (member id, role). The result omits
    adapters that took no step: the member keeps its weights.
    """
    own = samples.filter(pc.is_in(samples["adapter_id"], pa.array(list(adapters), pa.string())))
    updates = trainer.update(adapters, own)
    stepped, rows = {}, []
    for adapter_id, result in updates.items():
        member_id, role = members[adapter_id]
        if result.stepped:
            stepped[member_id] = result.adapter
        rows += _metrics(result, member_id, role)
    return stepped, tables.table(rows, tables.METRICS)


def gradients(
    adapters: Mapping[str, Adapter], samples: pa.Table, shard: Shard, trainer: Trainer, skips: bool = False
) -> tuple[dict[str, Gradient], pa.Table]:
    """Return the gradients of one share of the rows, by adapter id, and TOKENS of these rows.

    `adapters` are those with rows in the share, `samples` those of all shares: an adapter's loss is divided by all of its tokens.
    `skips`: groups without an advantage are in no share.
    """
    return trainer.gradients(adapters, share_of(samples, shard, skips), response_tokens(samples))


def step(
    adapter: Adapter,
    adapter_id: str,
    member: tuple[str, str],
    samples: pa.Table,
    parts: Iterable[Gradient],
    tokens: pa.Table,
    stepper: Stepper,
    skips: bool = False,
) -> tuple[Adapter | None, pa.Table]:
    """Return one adapter after the step on the sum of its gradients (None if it took none), and METRICS of the step.

    `member` is its (member id, role); `samples` and `tokens` may hold rows of other adapters. An adapter that is not `varied`
    has no gradients: the result is what `update` returns for it. With `skips`, groups without an advantage were left out.
    """
    counts = count(samples, adapter_id) | (count_skipped(samples, adapter_id) if skips else {})
    own = tokens.filter(pc.equal(tokens["adapter_id"], adapter_id))
    result = stepper.step(adapter, parts, own, counts) if counts["varied"] else Update(adapter, False, counts)
    return result.adapter if result.stepped else None, tables.table(_metrics(result, *member), tables.METRICS)


def carried_over(samples: pa.Table, population: Sequence[Member]) -> pa.Table:
    """Return SAMPLES of an earlier generation as samples of the weights that their members have by now.

    `logprobs` remain those of the weights that wrote the completions, so that the importance weights correct for the difference.
    Rows of members that have been replaced are left out.
    """
    now = {member.member_id: member for member in population}
    kept = samples.filter(pc.is_in(samples["member_id"], pa.array(list(now), pa.string())))
    members = [now[member_id] for member_id in kept["member_id"].to_pylist()]
    columns = {
        "adapter_id": pa.array([member.adapter_id for member in members], pa.string()),
        "adapter_sha256": pa.array([member.adapter_sha256 for member in members], pa.string()),
    }
    for name, values in columns.items():
        kept = kept.set_column(kept.schema.get_field_index(name), name, values)
    return tables.conform(kept, tables.SAMPLES)


def as_lag(metrics: pa.Table, moved: Collection[str]) -> pa.Table:
    """Return METRICS of steps, with `update.drift_*` named `update.lag_*` for members that have moved since their samples.

    Their weights are not those that wrote the samples: the difference is what the policy has moved since, and says little about
    engine and trainer.
    """
    lagging = pc.is_in(metrics["member_id"], pa.array(sorted(moved), pa.string()))
    names = pc.if_else(lagging, pc.replace_substring(metrics["name"], "update.drift_", "update.lag_"), metrics["name"])
    return tables.conform(metrics.set_column(metrics.schema.get_field_index("name"), "name", names), tables.METRICS)


def groups(samples: pa.Table, population: Sequence[Member], size: int) -> pa.Table:
    """Return GROUPS: every adapter with samples, in groups of at most `size` (0: one group).

    Groups are balanced by tokens: adapters are assigned in order of decreasing token count, each to the group with the fewest
    so far. Rows are sorted by group, then in the order of the population.
    """
    tokens = _tokens(samples)
    playing = [member for member in population if member.adapter_id in tokens]
    rows = [
        {
            "part": f"{number:02d}",
            "adapter_id": member.adapter_id,
            "member_id": member.member_id,
            "role": member.role,
            "tokens": tokens[member.adapter_id],
        }
        for number, group in enumerate(_balanced([(member.adapter_id, tokens[member.adapter_id]) for member in playing], size))
        for member in playing
        if member.adapter_id in group
    ]
    return tables.table(rows, tables.GROUPS)


def shares(samples: pa.Table, population: Sequence[Member], most: int, skips: bool = False) -> pa.Table:
    """Return GROUPS of an update that is cut by rows into at most `most` shares: empty if that is 0 or nothing trains.

    The rows of one prompt of an adapter stay together, so that the prompt is computed once. Shares are contiguous in the order
    adapter, then row, and balanced by tokens: few adapters are in two shares. A share without rows has no part. With `skips`,
    groups without an advantage are in no share.
    """
    units = _units(_learning_rows(samples, skips), varied(samples))
    roles = {member.adapter_id: member for member in population}
    rows = []
    for number in range(min(most, len(units))):
        shard = Shard(number, min(most, len(units)))
        tokens: dict[str, int] = {}
        for unit in _share(units, shard):
            tokens[unit.adapter_id] = tokens.get(unit.adapter_id, 0) + unit.tokens
        rows += [
            {
                "part": shard.name,
                "adapter_id": adapter_id,
                "member_id": roles[adapter_id].member_id,
                "role": roles[adapter_id].role,
                "tokens": own,
            }
            for adapter_id, own in tokens.items()
        ]
    return tables.table(rows, tables.GROUPS)


def share_of(samples: pa.Table, shard: Shard, skips: bool = False) -> pa.Table:
    """Return the rows of one share of `shares`, in the table's order. `samples` are those of all shares."""
    rows = _learning_rows(samples, skips)
    units = _share(_units(rows, varied(samples)), shard)
    return rows.take(pa.array(sorted(row for unit in units for row in unit.rows), pa.int64()))


def _learning_rows(samples: pa.Table, skips: bool) -> pa.Table:
    """Return the samples that an update computes: all, or with `skips` those of groups with an advantage."""
    return with_advantage(samples) if skips else samples


@dataclass(frozen=True)
class _Unit:
    """The rows that share a prompt of one adapter, by number, and their tokens: the prompt once, and all completions."""

    adapter_id: str
    rows: tuple[int, ...]
    tokens: int


def _units(samples: pa.Table, stepping: Collection[str]) -> list[_Unit]:
    """Return the units of the adapters that step: adapters, then prompts, in the order of their first rows."""
    names, lengths = samples["adapter_id"].to_pylist(), pc.list_value_length(samples["completion_ids"]).to_pylist()
    found: dict[str, dict[tuple[int, ...], list[int]]] = {}
    for row, (name, prompt) in enumerate(zip(names, samples["prompt_ids"].to_pylist(), strict=True)):
        if name in stepping:
            found.setdefault(name, {}).setdefault(tuple(prompt), []).append(row)
    return [
        _Unit(name, tuple(rows), len(prompt) + sum(lengths[row] for row in rows))
        for name, prompts in found.items()
        for prompt, rows in prompts.items()
    ]


def _share(units: Sequence[_Unit], shard: Shard) -> list[_Unit]:
    return shard.of(units, [unit.tokens for unit in units])


def _metrics(result: Update, member_id: str, role: str) -> list[dict[str, object]]:
    measured = result.metrics | {"stepped": float(result.stepped)}
    return [
        {"name": f"update.{name}", "value": float(value), "member_id": member_id, "role": role, "kind": None}
        for name, value in sorted(measured.items())
    ]


def _tokens(samples: pa.Table) -> dict[str, int]:
    """Return the number of tokens of each adapter's samples."""
    lengths = pc.add(pc.list_value_length(samples["prompt_ids"]), pc.list_value_length(samples["completion_ids"]))
    tokens: dict[str, int] = {}
    for adapter_id, length in zip(samples["adapter_id"].to_pylist(), lengths.to_pylist(), strict=True):
        tokens[adapter_id] = tokens.get(adapter_id, 0) + length
    return tokens


def _balanced(adapters: list[tuple[str, int]], size: int) -> list[set[str]]:
    """Return names in groups of at most `size`, from (name, tokens): the largest first, each into the lightest group."""
    count = -(-len(adapters) // size) if size else min(1, len(adapters))
    found: list[set[str]] = [set() for _ in range(count)]
    sums = [0] * count
    for name, tokens in sorted(adapters, key=lambda adapter: -adapter[1]):
        lightest = min((at for at in range(count) if not size or len(found[at]) < size), key=lambda at: sums[at])
        found[lightest].add(name)
        sums[lightest] += tokens
    return found
