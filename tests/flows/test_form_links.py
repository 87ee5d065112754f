"""Links that open a form of the UI, filled in: what they say is read back, and they can name no path."""

from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

import pytest
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from flows.config import ConfigError
from flows.form_links import FormLinks, generation_number, generation_text, new_id, of_environment, values
from flows.store.names import RUN_ID

LINKS = FormLinks("http://127.0.0.1:4200")


def read(link: str) -> tuple[str, dict[str, object]]:
    form = urlsplit(link).path.removeprefix("/forms/")
    return form, values(form, dict(parse_qsl(urlsplit(link).query)))


def test_what_a_link_says_is_read_back() -> None:
    assert read(LINKS.fork("smoke", 3, 12)) == (
        "fork",
        {"run_id": "smoke", "generation": "generation 3", "new_run_id": "smoke-g0003"},
    )
    assert read(LINKS.fork("smoke", -1)) == ("fork", {"run_id": "smoke", "generation": "start", "new_run_id": "smoke-start"})
    assert read(LINKS.fork("smoke", 11, 12))[1]["settings"] == ["generations=24"], "or there would be nothing left to do"
    restart = {"run_id": "smoke", "generation": "generation 3", "stage": "solve", "new_run_id": "smoke-g0003-solve"}
    assert read(LINKS.restart("smoke", 3, "solve")) == ("restart", restart)
    assert read(LINKS.benchmark("smoke", "t0-g0003")) == ("benchmark-member", {"run_id": "smoke", "adapter": "t0-g0003"})
    assert read(LINKS.compare(["a", "b"])) == ("compare", {"runs": ["a", "b"]})


def test_generations_are_texts_in_a_form_and_numbers_in_a_flow() -> None:
    whole = TypeAdapter(Annotated[int, BeforeValidator(generation_number)])
    for number in (-1, 0, 1, 12345):
        assert whole.validate_python(generation_text(number)) == number == whole.validate_python(number)
    for wrong in ("", "generation", "generation x", "generation 1.5", "the start", None):
        with pytest.raises(ValidationError):
            whole.validate_python(wrong)


def test_without_an_address_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POPULORA_FORMS_URL", raising=False)
    assert not of_environment() and of_environment().fork("smoke", 1) == ""
    monkeypatch.setenv("POPULORA_FORMS_URL", "javascript:alert(1)")
    assert not of_environment()
    monkeypatch.setenv("POPULORA_FORMS_URL", "http://127.0.0.1:4200/")
    assert of_environment().benchmark("r", "s0-start").startswith("http://127.0.0.1:4200/forms/benchmark-member?")


def test_names_of_new_runs_are_names() -> None:
    for run_id in ("a", "a" * 40, "a-" * 20):
        for tail in ("g0003", "g0003-benchmark", "start"):
            assert RUN_ID.fullmatch(new_id(run_id, tail)), (run_id, tail)


@pytest.mark.parametrize(
    ("form", "query"),
    [
        ("fork", {"store": "/etc"}),
        ("fork", {"run_id": "../secrets"}),
        ("fork", {"run_id": "s3://bucket"}),
        ("fork", {"new_run_id": "a/b"}),
        ("fork", {"settings": "model.name=/etc"}),
        ("fork", {"generation": "1; x"}),
        ("fork", {"generation": "9" * 5000}),
        ("fork", {"generation": "-2"}),
        ("restart", {"stage": "../solve"}),
        ("benchmark-member", {"adapter": "../../x"}),
        ("benchmark-member", {"suites": "x"}),
        ("compare", {"runs": "a,../b"}),
        ("train", {"run_id": "a"}),
    ],
)
def test_a_link_names_no_path(form: str, query: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        values(form, query)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200
