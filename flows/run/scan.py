"""A run as found in its store: every manifest in chain order, and whether the chain is intact."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flows.run.earlier_index import KEYS, ROWS
from flows.run.history import chained_with, off_policy_steps
from flows.run.manifest import Json, Manifest, digest, folder_of, generation_of, manifest_uri, place_of, read_manifest, skipped
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, StoreRefused


@dataclass
class RunScan:
    """A run as found: its manifests by uri in order, and its problems (uri, problem, whether the bytes are wrong)."""

    run: Run
    manifests: dict[str, Manifest] = field(default_factory=dict)
    wrong: list[tuple[str, str, bool]] = field(default_factory=list)
    hashed: dict[str, int] = field(default_factory=dict)
    """Bytes of each artifact that was read and hashed, by uri."""

    def report(self, uri: str, problem: str, bytes_wrong: bool = True) -> None:
        """Record a problem once."""
        if (uri, problem, bytes_wrong) not in self.wrong:
            self.wrong.append((uri, problem, bytes_wrong))

    def of(self, generation: int | None) -> list[tuple[str, Manifest]]:
        """Return the manifests in a generation's folder, including parts."""
        prefix = folder_of(generation) + "/"
        return [(uri, manifest) for uri, manifest in self.manifests.items() if uri.startswith(prefix)]

    def generations(self) -> list[int]:
        """Return the numbers of the generations that have manifests."""
        return sorted({one.generation for one in self.manifests.values() if one.generation is not None})


def survey_of(run: Run) -> RunScan:
    """Scan all readable manifests in chain order, parts after their stage; report the others as problems."""
    uris = [uri.removeprefix(f"{run.run_id}/") for uri in run.store.list(f"{run.run_id}/")]
    if not uris:
        raise NotStored(f"there is no run {run.run_id} in {run.store.url}")
    scan = RunScan(run)
    tops = ("start", "benchmarks")
    folders = {uri: uri.partition("/")[0] for uri in uris if uri.endswith(".json")}
    wanted = [uri for uri, top in folders.items() if top in tops or generation_of(top) is not None]
    for uri in sorted(wanted, key=order_of):
        try:
            scan.manifests[uri] = read_manifest(run.store.read(f"{run.run_id}/{uri}"), uri)
        except (Damaged, StoreRefused) as error:
            scan.report(uri, str(error).removeprefix(f"{uri}: "))
    return scan


def dependents(scan: RunScan, uri: str) -> tuple[str, ...]:
    """Return the stages that read an artifact, or anything made from it, in order."""
    tainted = {uri} | {ref.uri for ref in scan.manifests[uri].outputs} if uri in scan.manifests else {uri}
    if uri.endswith("/tasks.parquet"):  # `verify` makes its index segment from the table that it writes
        folder = uri.partition("/")[0]
        tainted |= {f"{folder}/{KEYS}.parquet", f"{folder}/{ROWS}.parquet"}
    found = []
    for place, manifest in scan.manifests.items():
        if any(ref.uri in tainted for ref in manifest.inputs):
            tainted |= {ref.uri for ref in manifest.outputs}
            found.append(place.removesuffix(".json"))
    return tuple(found)


def check_chain(scan: RunScan, description: Json) -> None:
    """Check that every manifest is where it states, none is missing, and each carries the digest of the one before it."""
    links: list[tuple[str, str, str]] = [("run.json", digest(description) if description else "", "")]
    unreadable = [uri for uri, _, _ in scan.wrong if ".parts/" not in uri and place_in_chain(uri) is not None]
    place = -2
    for uri in sorted([uri for uri in scan.manifests if ".parts/" not in uri] + unreadable, key=order_of):
        here = place_in_chain(uri)
        if here is None:
            continue
        for generation, stage in skipped(place, here):
            scan.report(manifest_uri(stage, generation), "the manifest is missing, although later stages have theirs")
            links.append((manifest_uri(stage, generation), "", ""))
        place, manifest = here, scan.manifests.get(uri)
        links.append((uri, digest(manifest), manifest.previous) if manifest else (uri, "", ""))
    _check_links(scan, links)
    for uri, manifest in scan.manifests.items():
        _check_identity(scan, uri, manifest, description)


def _check_identity(scan: RunScan, uri: str, manifest: Manifest, description: Json) -> None:
    """Check that a manifest belongs to the run, generation and stage in its name, and that a part is chained where it belongs."""
    stage, is_part, part = manifest.stage.partition(".parts/")
    benchmark = uri.startswith("benchmarks/")
    fits = stage in (*STAGE_NAMES, "start") and (benchmark or manifest_uri(stage, manifest.generation, part or None) == uri)
    if not fits or manifest.run != scan.run.run_id:
        what = "the start" if manifest.stage == "start" else manifest.stage
        of = "" if manifest.generation is None else f" of generation {manifest.generation}"
        scan.report(uri, f"its content is {what}{of} of run {manifest.run}")
    if not (is_part and fits and description):
        return
    like = chained_with(stage, off_policy_steps(description))
    beside = scan.manifests.get(manifest_uri(like, manifest.generation))
    if beside is not None and beside.previous != manifest.previous:
        scan.report(uri, f"it is chained to a different manifest than {'its stage' if like == stage else like}")


def _check_links(scan: RunScan, links: Sequence[tuple[str, str, str]]) -> None:
    """Report the damaged manifest of each broken link: the one whose other link is broken too, else the earlier one."""

    def holds(at: int) -> bool:
        (_, own, _), (_, after, previous) = links[at], links[at + 1]
        return not own or not after or own == previous

    for at in range(len(links) - 1):
        if not holds(at):
            later = at + 2 < len(links) and not holds(at + 1)
            scan.report(links[at + 1 if later else at][0], "its digest is not the one recorded in the chain")


def check_inputs(scan: RunScan) -> None:
    """Check that stages read what earlier ones wrote. Skipped while manifests are missing: the inputs may be theirs."""
    if not complete(scan):
        return
    made = {(ref.uri, ref.sha256) for manifest in scan.manifests.values() for ref in manifest.outputs}
    for uri, manifest in scan.manifests.items():
        for ref in manifest.inputs:
            if (ref.uri, ref.sha256) not in made:
                scan.report(uri, f"it names an input that no manifest made: {ref.uri} with digest {ref.sha256[:12]}…", False)


def complete(scan: RunScan) -> bool:
    """Return whether no manifest of the chain is missing or unreadable."""
    return all(uri in scan.manifests or place_in_chain(uri) is None for uri, _, _ in scan.wrong)


def order_of(uri: str) -> tuple[int, int, str]:
    """Return the sort key: by place in the chain, parts before the stage that joins them, benchmarks last."""
    place = place_in_chain(uri)
    return (10**9, 0, uri) if place is None else (place, int(".parts/" not in uri), uri)


def place_in_chain(uri: str) -> int | None:
    """Return the place in the chain of the stage that a manifest belongs to; None for benchmarks."""
    top, _, rest = uri.partition("/")
    stage = rest.partition(".parts/")[0].removesuffix(".json")
    if top == "start":
        return place_of(None, stage)
    generation = generation_of(top)
    return None if generation is None or stage not in STAGE_NAMES else place_of(generation, stage)
