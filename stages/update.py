"""Update: take one policy-gradient step for each adapter of a group on its own samples."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.population import Member
from stages.core.training.protocol import Trainer


def update(
    adapters: Mapping[str, Adapter], members: Mapping[str, tuple[str, str]], samples: pa.Table, trainer: Trainer
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
        measured = result.metrics | {"stepped": float(result.stepped)}
        rows += [
            {"name": f"update.{name}", "value": float(value), "member_id": member_id, "role": role, "kind": None}
            for name, value in sorted(measured.items())
        ]
    return stepped, tables.table(rows, tables.METRICS)


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
