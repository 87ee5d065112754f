"""Which adapters of a run are scored: by id, or by a rule in a generation."""

from dataclasses import dataclass

from flows.config import ConfigError, RunConfig, parse
from flows.near_names import hint, near_or_all
from flows.run.run import Run
from flows.storage import NotStored
from stages.core import tables
from stages.core.population import Member, population_after
from stages.core.suites.scores import Contestant

RULES = ("students", "all")  # and top:N


@dataclass(frozen=True)
class Chosen:
    """Adapters of a run: these ids, or those that a rule chooses as trained in a generation (-1: the start; None: the newest).

    `members` is `students`, `all`, `top:N` (by fitness) or adapter ids separated by commas.
    """

    adapter_ids: tuple[str, ...] = ()
    generation: int | None = None
    members: str = "students"

    def __post_init__(self) -> None:
        if self.generation is not None and self.generation < -1:
            raise ConfigError(f"--generation {self.generation}: give -1 (the start) or more")

    @property
    def named(self) -> tuple[str, ...]:
        """The ids, if no rule chooses."""
        return self.adapter_ids or _given(self.members)

    def contestants(self, run: Run) -> list[Contestant]:
        """Return the adapters. Raises ConfigError if the generation is not rated yet."""
        if not self.named:
            return _by_rule(run, self._generation(run), self.members)
        return _named(run, self.named, may_be_rule=not self.adapter_ids and len(self.named) == 1)

    def folder(self, run: Run) -> str:
        """Return a folder name for them, so that equal requests share their answers."""
        return "-".join(self.named) or folder_of_generation(self._generation(run), self.members)

    def _generation(self, run: Run) -> int:
        return newest_generation(run) if self.generation is None else self.generation


def newest_generation(run: Run) -> int:
    """Return the newest generation with committed ratings; -1: the start."""
    rated = [number for number in run.history.generations() if run.manifest("rate", number) is not None]
    return rated[-1] if rated else -1


def folder_of_generation(generation: int, members: str) -> str:
    """Return a folder name for the members of a generation that a rule chooses."""
    rule = "" if members == "students" else "-" + members.replace(":", "")
    return ("start" if generation < 0 else f"generation={generation:04d}") + rule


def config_of(run: Run) -> RunConfig:
    """Return the configuration of a run that has begun."""
    description = run.history.description()
    assert description is not None
    return parse(description["config"])


def _given(members: str) -> tuple[str, ...]:
    """Return adapter ids if `members` contains them."""
    rule = members in RULES or members.startswith("top:")
    return () if rule else tuple(name.strip() for name in members.split(",") if name.strip())


def _by_rule(run: Run, generation: int, rule: str) -> list[Contestant]:
    """Return the members of a generation, as trained, that a rule selects."""
    if rule not in RULES and not rule.startswith("top:"):
        raise ConfigError(f"members: {rule!r} is not one of students, all, top:N, or adapter ids")
    empty = tables.OFFSPRING.empty_table()
    if generation < 0:
        members = population_after(run.read_table(None, "population"), empty, -1)
    else:
        if run.manifest("rate", generation) is None:
            rated = [number for number in run.history.generations() if run.manifest("rate", number) is not None]
            known = f"those up to {max(rated)} are" if rated else "none is"
            raise ConfigError(f"generation {generation} of run {run.run_id} is not rated; {known}")
        members = population_after(run.read_table(generation, "ratings"), empty, generation)
    if rule.startswith("top:"):
        count = rule.removeprefix("top:")
        if not count.isdigit() or not int(count):
            raise ConfigError(f"members: {rule!r} is not one of students, all, top:N, or adapter ids")
        kappa = config_of(run).evolution.kappa
        best = sorted(members, key=lambda member: (-(member.rating.mu - kappa * member.rating.sigma), member.member_id))
        members = best[: int(count)]
    return [_contestant(member) for member in members if rule != "students" or member.role != "teacher"]


def _contestant(member: Member) -> Contestant:
    return Contestant(member.member_id, member.role, member.adapter_id, member.adapter_sha256)


def _named(run: Run, adapter_ids: tuple[str, ...], may_be_rule: bool) -> list[Contestant]:
    """Return the adapters of these ids; `may_be_rule`: one that does not exist may be a misspelt rule."""
    contestants = []
    for adapter_id in adapter_ids:
        try:
            ref = run.history.find(f"adapters/{adapter_id}/adapter_model.safetensors")
        except NotStored as error:
            known = run.store.folders(f"{run.run_id}/adapters")
            near = hint(adapter_id, [*RULES, *known]) or "; members are students, all, top:N, or adapter ids"
            said = near if may_be_rule else near_or_all(adapter_id, known)
            if adapter_id in RULES:
                said = f"; {adapter_id} is a rule of --members, and stands alone there"
            raise ConfigError(f"run {run.run_id} has no adapter {adapter_id}{said}") from error
        member = adapter_id.rpartition("-")[0]
        role = {"t": "teacher", "s": "student"}.get(member[:1], "both")
        contestants.append(Contestant(member, role, adapter_id, ref.sha256))
    return contestants
