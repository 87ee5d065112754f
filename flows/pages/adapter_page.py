"""The content of adapter pages: where weights come from, what was made from them, how they changed and how they performed."""

from typing import Any

import pyarrow.compute as pc
from safetensors import SafetensorError
from safetensors.numpy import load

from flows.monitoring.run_tables import RunTables
from flows.pages.library import Library
from flows.pages.outlined import member_figure, ratings_figure
from flows.pages.pedigree import Node, Pedigree
from flows.run.history import OWN_WAY, question_of
from flows.run.manifest import Json, Ref, folder_of
from flows.run.planned import planned_generations
from flows.run.run import ADAPTER_FILES, Retired, Run
from flows.storage import Damaged, NotStored, StoreRefused
from stages.core.lora.adapter_files import WEIGHTS_FILE
from stages.core.lora.delta import check_alike, compare

MEASURED_BYTES = 256 << 20  # bytes of two adapters' weights, up to which the page computes their difference


def adapters_page(library: Library, run_id: str) -> Json:
    """Return each member with its weights and its newest rating."""
    run = library.run(run_id)
    watch = library.watch(run)
    latest = {row["member_id"]: row for row in watch.standings().to_pylist()}
    members = library.pedigree(run).members()
    alive = _alive(watch)
    rows = [
        {
            "member_id": member,
            "role": nodes[0].role,
            "nodes": nodes,
            "rating": latest.get(member),
            "alive": member in alive,
            "birth": nodes[0],
        }
        for member, nodes in members.items()
    ]
    figure = ratings_figure(watch) if latest else None
    return {
        "run": run_id,
        "figure": figure,
        "members": sorted(rows, key=lambda row: (not row["alive"], -_fitness(row["rating"]))),
    }


def adapter_page(library: Library, run_id: str, adapter_id: str) -> Json:
    """Return one adapter. Raises NotStored if the run has none of that id."""
    run = library.run(run_id)
    watch, pedigree = library.watch(run), library.pedigree(run)
    node = pedigree.node(adapter_id)
    if node is None:
        raise NotStored(f"Run {run_id} has no adapter {adapter_id[:80]}.")
    refs, ratings = _refs(run, adapter_id), _ratings(watch, node.member_id)
    return {
        "run": run_id,
        "node": node,
        "planned": planned_generations(run.history.description() or {}, watch.newest_stages()),
        "files": [_file(run, ref) for ref in refs],
        "ancestors": pedigree.ancestors(adapter_id),
        "descendants": pedigree.descendants(adapter_id),
        "children": pedigree.children(adapter_id),
        "changes": [_change(run, node, parent) for parent in node.parents],
        "update": _update(watch, node),
        "samples": _samples(library, run, node),
        "ratings": ratings,
        "figure": member_figure(ratings),
        "scores": _scores(run, watch, adapter_id),
    }


def _fitness(rating: Json | None) -> float:
    return float("-inf") if rating is None else float(rating["fitness"])


def _alive(watch: RunTables) -> set[str]:
    """Return the current members of the population."""
    for generation in reversed(watch.generations):
        rated = {row["member_id"] for row in watch.of(generation, "ratings").to_pylist()}
        if rated:
            births = watch.of(generation, "offspring").to_pylist()
            return (rated - {row["replaces"] for row in births}) | {row["member_id"] for row in births}
    return set(Pedigree(watch).members())


def _refs(run: Run, adapter_id: str) -> list[Ref]:
    found = []
    for name in ADAPTER_FILES:
        try:
            found.append(run.history.find(f"adapters/{adapter_id}/{name}"))
        except NotStored:
            continue
    return found


def _file(run: Run, ref: Ref) -> Json:
    """Return a file with its size, or the reason why it is gone."""
    place = run.history.place(ref.uri, ref.origin)
    try:
        return {"ref": ref, "name": ref.uri.rpartition("/")[2], "bytes": run.store.size(place), "gone": ""}
    except NotStored:
        reason = run.history.retired().get(ref.uri, {}).get("reason")
        gone = f"retired: {reason}" if reason else "missing from the store, although its manifest lists it"
        return {"ref": ref, "name": ref.uri.rpartition("/")[2], "bytes": None, "gone": gone}


def _change(run: Run, node: Node, parent: str) -> Json:
    """Return how far the weights are from a parent's, computed from both if they are small enough."""
    own, other = (f"adapters/{name}/{WEIGHTS_FILE}" for name in (node.adapter_id, parent))
    row: Json = {"parent": parent, "relative": None, "cosine": None, "said": ""}
    try:
        refs = [run.history.find(uri) for uri in (own, other)]
        files = [_file(run, ref) for ref in refs]
        if gone := next((file["gone"] for file in files if file["gone"]), ""):
            return row | {"said": f"unknown: the weights are {gone}"}
        if sum(file["bytes"] for file in files) > MEASURED_BYTES:
            return row | {"said": f"not computed: both files together are larger than {MEASURED_BYTES >> 20} MiB"}
        child, before = (load(run.read_blob(ref)) for ref in refs)
        check_alike({node.adapter_id: child, parent: before})
        found = compare(child, before)
    except Retired:
        return row | {"said": "unknown: the weights were retired"}
    except StoreRefused:  # a ValueError, too
        raise
    except (NotStored, Damaged, SafetensorError, ValueError) as error:
        return row | {"said": f"unknown: {error}"}
    if found.relative == 0 and found.cosine == 0:
        return row | {"said": "the parent's delta W is zero"}
    return row | {"relative": found.relative, "cosine": found.cosine}


def _update(watch: RunTables, node: Node) -> list[tuple[str, float]]:
    """Return what the update that made these weights measured about this member."""
    if node.made_by != "update" or node.generation is None:
        return []
    rows = watch.of(node.generation, "metrics").to_pylist()
    return [
        (row["name"].removeprefix("update."), row["value"])
        for row in rows
        if row["name"].startswith("update.") and row["member_id"] == node.member_id and row["kind"] is None
    ]


def _samples(library: Library, run: Run, node: Node) -> Json | None:
    """Return the samples of the update that made these weights."""
    if node.made_by != "update" or node.generation is None or not node.parents:
        return None
    generation = node.generation - run.history.off_policy_steps()
    uri = f"{folder_of(generation)}/samples.parquet"
    rows = library.rows(run, uri, ("kind", "reward", "advantage"), member_id=node.member_id)
    mean = sum(row["reward"] for row in rows) / len(rows) if rows else None
    moving = sum(row["advantage"] != 0 for row in rows)
    return {"count": len(rows), "moving": moving, "mean": mean, "generation": generation}


def _ratings(watch: RunTables, member_id: str) -> list[Json]:
    """Return the member's ratings, generation by generation."""
    standings = watch.standings()
    own = standings.filter(pc.equal(standings["member_id"], member_id))
    return [
        row | {"generation": generation}
        for generation in dict.fromkeys(own["generation"].to_pylist())
        for row in watch.of(generation, "ratings").to_pylist()
        if row["member_id"] == member_id
    ]


def _scores(run: Run, watch: RunTables, adapter_id: str) -> list[dict[str, Any]]:
    """Return the benchmark scores of these weights, each with how the suite was asked."""
    inside = [one for number in watch.generations for one in watch.manifests(number) if one.stage == "benchmark"]
    refs = {ref.uri: (ref, question_of(one)) for one in reversed([*inside, *run.history.benchmarks()]) for ref in one.outputs}
    found = []
    for uri, (ref, question) in reversed(refs.items()):
        if uri.endswith("/scores.parquet"):
            table = run.read_table(ref, "scores")
            rows = table.filter(pc.equal(table["adapter_id"], adapter_id)).to_pylist()
            found += [row | {"uri": uri, "question": question or OWN_WAY} for row in rows if " band " not in row["group"]]
    return found
