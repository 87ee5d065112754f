"""The forms offer what the store holds, and refuse what it does not."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validation

from flows.prefect_ops import deployments
from flows.prefect_ops.forms import FORMS, FRESH_SECONDS, Catalogue, Forms, Offer, offering
from flows.run.lease import hold
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import open_store
from flows.suites.suite_data import suite_names
from tests.support import example_run, malformed
from tests.support.counted import CountingStore

OFFERS = [
    Offer("new", 2.0, (0, 1), ("t0-g0001", "s0-g0001")),
    Offer("old", 1.0, (0, 1, 2, 3), ("t0-g0003",)),
    Offer("begun", 0.0, (), ()),
]


def form(name: str, offers: list[Offer] = OFFERS) -> dict[str, Any]:
    return offering(parameter_schema(FORMS[name]).model_dump(), offers, "/store")


def refused(name: str, values: dict[str, Any], offers: list[Offer] = OFFERS) -> str:
    try:
        validation.validate(values, form(name, offers), raise_on_error=True)  # type: ignore[arg-type]
    except validation.ValidationError as error:
        return str(error)
    return ""


def test_runs_generations_stages_suites_and_members_are_offered() -> None:
    restart, member, compare = (form(name)["properties"] for name in ("restart", "benchmark-member", "compare"))
    assert restart["run_id"]["enum"] == ["new", "old", "begun"]
    generations = ["generation 3", "generation 2", "generation 1", "generation 0"]
    assert restart["generation"]["anyOf"] == [
        {"title": "by name", "type": "string", "enum": generations},
        {"title": "by number", "type": "integer", "minimum": 0, "maximum": 3},
    ]
    assert "type" not in restart["generation"] and "minimum" not in restart["generation"]
    assert form("fork")["properties"]["generation"]["anyOf"] == [
        {"title": "by name", "type": "string", "enum": [*generations, "start"]},
        {"title": "by number", "type": "integer", "minimum": -1, "maximum": 3},
    ]
    assert "new: 0 to 1; old: 0 to 3." in restart["generation"]["description"]
    assert restart["stage"]["enum"] == list(STAGE_NAMES)
    assert member["suites"]["items"]["enum"] == suite_names()
    assert "new: t0-g0001, s0-g0001" in member["adapter"]["description"]
    assert compare["runs"]["items"]["enum"] == ["new", "old", "begun"]


def test_every_field_has_a_title_and_says_what_it_is() -> None:
    for name in FORMS:
        for field, found in form(name)["properties"].items():
            assert found["title"][:1].isupper() and found.get("description"), (name, field)


def test_a_large_store_is_described_in_part_and_many_generations_are_bounded() -> None:
    many = [Offer(f"r{number}", 0.0, tuple(range(900)), ("s0-start",)) for number in range(40)]
    generation = form("fork", many)["properties"]["generation"]
    assert all("enum" not in one for one in generation["anyOf"])
    assert generation["description"].count("0 to 899") == 12 and "and 28 more runs" in generation["description"]
    takes = {"start": True, "generation 0": True, "generation 731": True, "generation": False, "x": False, 731: True, -2: False}
    for given, taken in takes.items():
        values = {"run_id": "r1", "new_run_id": "x", "generation": given, "store": "/store"}
        assert not refused("fork", values, many) if taken else refused("fork", values, many), given
    assert refused("restart", values | {"generation": "start", "stage": "solve"}, many)


def test_an_empty_store_has_forms_too() -> None:
    assert "enum" not in form("fork", [])["properties"]["run_id"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fork", {"run_id": "nobody", "new_run_id": "x", "generation": "generation 1", "store": "/store"}),
        ("fork", {"run_id": "new", "new_run_id": "../x", "generation": "generation 1", "store": "/store"}),
        ("fork", {"run_id": "new", "new_run_id": "x", "generation": "generation 9", "store": "/store"}),
        ("fork", {"run_id": "new", "new_run_id": "x", "generation": 9, "store": "/store"}),
        ("fork", {"run_id": "new", "new_run_id": "x", "generation": -2, "store": "/store"}),
        ("fork", {"run_id": "new", "new_run_id": "x", "generation": 1.5, "store": "/store"}),
        ("restart", {"run_id": "new", "new_run_id": "x", "generation": -1, "stage": "solve", "store": "/store"}),
        ("fork", {"run_id": "new", "new_run_id": "x", "generation": "generation 1", "store": "/etc"}),
        ("fork", {"run_id": "new", "new_run_id": "x", "generation": "generation 1", "store": "s3://other/bucket"}),
        ("restart", {"run_id": "new", "new_run_id": "x", "generation": "generation 1", "stage": "slove", "store": "/store"}),
        ("restart", {"run_id": "new", "new_run_id": "x", "generation": "start", "stage": "solve", "store": "/store"}),
        ("benchmark-member", {"run_id": "new", "adapter": "../x", "store": "/store"}),
        ("benchmark-member", {"run_id": "new", "adapter": "t0-start", "suites": ["/etc/passwd"], "store": "/store"}),
        ("compare", {"runs": ["new"], "store": "/store"}),
        ("compare", {"runs": ["new", "../old"], "store": "/store"}),
    ],
)
def test_a_form_takes_nothing_else(name: str, values: dict[str, Any]) -> None:
    assert "\n" not in (said := refused(name, values)) and said


def test_a_form_takes_what_it_offers() -> None:
    assert not refused("fork", {"run_id": "old", "new_run_id": "x", "generation": "start", "store": "/store"})
    assert not refused(
        "restart", {"run_id": "old", "new_run_id": "x", "generation": "generation 3", "stage": "solve", "store": "/store"}
    )
    for number in (0, 3, -1):
        assert not refused("fork", {"run_id": "old", "new_run_id": "x", "generation": number, "store": "/store"})
    assert not refused("restart", {"run_id": "old", "new_run_id": "x", "generation": 0, "stage": "solve", "store": "/store"})
    assert not refused("benchmark-member", {"run_id": "old", "adapter": "t0-g0003", "suites": ["probe-dev"], "store": "/store"})
    assert not refused("compare", {"runs": ["old", "new"], "store": "/store"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    with hold(open_store(str(tmp_path)), "first") as epoch:
        example_run.build(Run(open_store(str(tmp_path)), "first", epoch), 1)
    return tmp_path


def test_what_the_store_holds_is_found(store: Path) -> None:
    (store / "Not A Run").mkdir()
    (store / "broken").mkdir()
    (store / "broken" / "run.json").write_text("{")
    catalogue = Catalogue(open_store(str(store)))
    (found,) = catalogue.offers()
    assert (found.run_id, found.generations) == ("first", (0,)) and set(found.members) >= {"t0-g0000", "s0-g0000"}
    with hold(open_store(str(store)), "second") as epoch:
        example_run.build(Run(open_store(str(store)), "second", epoch), 0)
    assert catalogue.changed()
    assert {one.run_id: one.members for one in catalogue.offers()} == {"first": found.members, "second": ()}
    assert not catalogue.changed()


@pytest.mark.parametrize("part", malformed.RUN_JSON)
def test_a_malformed_run_is_not_offered(part: dict[str, object], store: Path) -> None:
    (store / "odd").mkdir()
    (store / "odd" / "run.json").write_text(json.dumps({"schema": 1, "config": {}, "clock": {}} | part))
    assert [one.run_id for one in Catalogue(open_store(str(store))).offers()] == ["first"]


def test_a_run_that_took_the_name_of_a_deleted_one_has_its_own_members(store: Path) -> None:
    catalogue = Catalogue(open_store(str(store)))
    assert catalogue.offers()[0].members
    shutil.rmtree(store / "first")
    with hold(open_store(str(store)), "first") as epoch:
        example_run.build(Run(open_store(str(store)), "first", epoch), 0)
    assert [(one.run_id, one.generations, one.members) for one in catalogue.offers()] == [("first", (), ())]
    shutil.rmtree(store / "first")
    assert catalogue.offers() == []


@pytest.mark.flow
def test_forms_follow_the_store_and_the_server_refuses_by_them(store: Path) -> None:
    deployments.deploy(str(store))
    with get_client(sync_client=True) as client:

        def start(run_id: str) -> Any:
            served = client.read_deployment_by_name("fork/fork")
            values = {"run_id": run_id, "new_run_id": "x", "generation": "start", "store": str(store)}
            return client.create_flow_run_from_deployment(served.id, parameters=values)

        assert client.read_deployment_by_name("compare/compare").parameter_openapi_schema["properties"]["runs"]["items"][
            "enum"
        ] == ["first"]
        counting, opened, now = CountingStore(open_store(str(store))), list[str](), [0.0]

        def open_counted(url: str) -> Any:
            opened.append(url)
            return counting

        forms = Forms(open_counted, lambda: now[0])
        assert forms.outdated() and forms.refresh() == []
        assert counting.requests["folders"] == 2, "one listing of the store and one of its run, for all forms"
        assert not forms.outdated() and counting.requests["folders"] == 3
        now[0] += FRESH_SECONDS
        counting.requests.clear()
        assert forms.outdated() and forms.refresh() == [] and not counting.requests["read"]
        with pytest.raises(PrefectHTTPStatusError) as refused_by:
            start("second")
        assert refused_by.value.response.status_code in (409, 422)
        with hold(open_store(str(store)), "second") as epoch:
            example_run.build(Run(open_store(str(store)), "second", epoch), 0)
        assert forms.outdated() and sorted(forms.refresh()) == sorted(FORMS) and opened == [str(store)]
        made = start("second")
        client.delete_flow_run(made.id)
        served = client.read_deployment_by_name("fork/fork")
        assert served.enforce_parameter_schema and served.tags == ["populora"] and served.work_queue_name == "jobs"
