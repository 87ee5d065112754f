"""Ancestry of weights: each adapter of a run with its parents and children, from small tables alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flows.monitoring.run_tables import RunTables
from flows.run.manifest import Manifest
from flows.storage import NotStored
from stages.core.lora.adapter_files import WEIGHTS_FILE

DEPTH, NODES = 60, 400  # of a tree that is fully shown
_OF_WEIGHTS = ("member_id", "role", "adapter_id", "next_adapter_id", "next_adapter_sha256")


@dataclass(frozen=True)
class Node:
    """One state of a member's weights. `made_by` is start, update or evolve; `generation` is None for start."""

    adapter_id: str
    member_id: str
    role: str
    made_by: str
    generation: int | None
    parents: tuple[str, ...] = ()
    sha256: str = ""
    birth: dict[str, Any] | None = None


@dataclass
class Branch:
    """A period of one member's life in a tree. `cut`: it is elsewhere in the tree, or the tree is too large."""

    node: Node
    steps: list[Node]
    branches: list["Branch"] = field(default_factory=list)
    cut: bool = False


class Pedigree:
    """All adapters of a run."""

    def __init__(self, watch: RunTables) -> None:
        self.nodes: dict[str, Node] = {}
        self._children: dict[str, list[str]] = {}
        self._start(watch)
        rated: dict[int, dict[str, Any]] = {}
        for row in watch.columns("ratings", _OF_WEIGHTS).to_pylist():
            rated.setdefault(row["generation"], {})[row["member_id"]] = row
        for generation in watch.generations:
            self._trained(watch, generation, rated.get(generation, {}))
            self._born(watch, generation)

    def node(self, adapter_id: str) -> Node | None:
        """Return the adapter, or None."""
        return self.nodes.get(adapter_id)

    def children(self, adapter_id: str) -> list[Node]:
        """Return what was made from these weights: the next ones of the same member, and offspring."""
        return [self.nodes[name] for name in self._children.get(adapter_id, [])]

    def members(self) -> dict[str, list[Node]]:
        """Return the adapters of each member, oldest first."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            found.setdefault(node.member_id, []).append(node)
        return found

    def ancestors(self, adapter_id: str) -> Branch:
        """Return the tree back to the starting weights: a member's steps newest first, then its parents' branches at birth."""
        return self._up(self.nodes[adapter_id], set(), 0)

    def descendants(self, adapter_id: str) -> Branch:
        """Return the tree forward: a member's steps oldest first, with a branch for each child."""
        return self._down(self.nodes[adapter_id], set(), 0)

    def lineage(self, adapter_id: str) -> Iterator[Node]:
        """Return these weights, their first parent, and so on back to the start."""
        node = self.nodes.get(adapter_id)
        while node is not None:
            yield node
            node = self.nodes.get(node.parents[0]) if node.parents else None

    def _up(self, node: Node, seen: set[str], depth: int) -> Branch:
        steps = [node]
        while steps[-1].made_by == "update" and steps[-1].parents and steps[-1].parents[0] in self.nodes:
            steps.append(self.nodes[steps[-1].parents[0]])
        branch = Branch(node, steps, cut=node.adapter_id in seen or depth > DEPTH or len(seen) > NODES)
        if not branch.cut:
            seen.update(step.adapter_id for step in steps)
            branch.branches = [self._up(self.nodes[name], seen, depth + 1) for name in steps[-1].parents if name in self.nodes]
        return branch

    def _down(self, node: Node, seen: set[str], depth: int) -> Branch:
        steps, births = [node], []
        while True:
            after = self.children(steps[-1].adapter_id)
            births += [child for child in after if child.member_id != node.member_id]
            own = [child for child in after if child.member_id == node.member_id]
            if not own:
                break
            steps.append(own[0])
        branch = Branch(node, steps, cut=node.adapter_id in seen or depth > DEPTH or len(seen) > NODES)
        if not branch.cut:
            seen.update(step.adapter_id for step in steps)
            branch.branches = [self._down(child, seen, depth + 1) for child in births]
        return branch

    def _add(self, node: Node) -> None:
        if node.adapter_id in self.nodes:
            return
        self.nodes[node.adapter_id] = node
        for parent in dict.fromkeys(node.parents):
            self._children.setdefault(parent, []).append(node.adapter_id)

    def _start(self, watch: RunTables) -> None:
        try:
            rows = watch.run.read_table(None, "population").to_pylist()
        except NotStored:  # the start is not finished yet
            rows = []
        for row in rows:
            self._add(Node(row["adapter_id"], row["member_id"], row["role"], "start", None, (), row["adapter_sha256"]))

    def _trained(self, watch: RunTables, generation: int, rated: dict[str, Any]) -> None:
        """Add what this generation's update made: from its ratings by member, or from its manifest if it is not rated yet."""
        for row in rated.values():
            if row["next_adapter_id"] != row["adapter_id"]:
                known = (row["next_adapter_id"], row["member_id"], row["role"], "update", generation)
                self._add(Node(*known, (row["adapter_id"],), row["next_adapter_sha256"]))
        made = next((manifest for manifest in watch.manifests(generation) if manifest.stage == "update"), None)
        for adapter_id, sha256 in weights_of(made) if made and not rated else ():
            member_id = adapter_id.rpartition("-")[0]
            before = list(self.members().get(member_id, []))[-1:]
            role = before[0].role if before else ""
            parents = tuple(node.adapter_id for node in before)
            self._add(Node(adapter_id, member_id, role, "update", generation, parents, sha256))

    def _born(self, watch: RunTables, generation: int) -> None:
        for row in watch.of(generation, "offspring").to_pylist():
            parents = tuple(row["parent_adapter_ids"])
            self._add(
                Node(row["adapter_id"], row["member_id"], row["role"], "evolve", generation, parents, row["adapter_sha256"], row)
            )


def weights_of(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Return (adapter id, digest) of the weights that a stage made."""
    for ref in manifest.outputs:
        folder, _, name = ref.uri.rpartition("/")
        if name == WEIGHTS_FILE:
            yield folder.removeprefix("adapters/"), ref.sha256
