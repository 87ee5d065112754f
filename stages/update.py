"""Update: one policy-gradient step for every adapter of a group, each on its own samples."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.training.protocol import Trainer


def update(
    adapters: Mapping[str, Adapter], members: Mapping[str, tuple[str, str]], samples: pa.Table, trainer: Trainer
) -> tuple[dict[str, Adapter], pa.Table]:
    """The adapters that took a step, by member id, and METRICS of the step.

    `adapters` maps adapter ids to their weights; `members` maps each of those ids to its (member id, role). Adapters that
    took no step are not in the result: the member goes on with the weights it had.
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


def by_tokens(samples: pa.Table, adapter_ids: list[str], size: int) -> list[list[str]]:
    """Adapter ids in groups of at most `size` (0: one group), balanced by their tokens: largest first into the lightest."""
    if not size or size >= len(adapter_ids):
        return [adapter_ids]
    tokens = dict.fromkeys(adapter_ids, 0)
    lengths = pc.add(pc.list_value_length(samples["prompt_ids"]), pc.list_value_length(samples["completion_ids"]))
    for adapter_id, length in zip(samples["adapter_id"].to_pylist(), lengths.to_pylist(), strict=True):
        tokens[adapter_id] += length
    groups: list[list[str]] = [[] for _ in range(-(-len(adapter_ids) // size))]
    for adapter_id in sorted(adapter_ids, key=lambda name: (-tokens[name], adapter_ids.index(name))):
        lightest = min((group for group in groups if len(group) < size), key=lambda group: sum(tokens[name] for name in group))
        lightest.append(adapter_id)
    return [sorted(group, key=adapter_ids.index) for group in groups]
