"""The base model as a card names it: without the path of a folder, and with the licence that its own card states."""

from pathlib import Path

import pytest

from flows.export.base_model import BaseModel, Licence, base_of


def test_a_base_that_is_a_folder_is_named_without_its_path_and_claims_no_place_on_the_hub(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "README.md").write_text("---\nlicense: other\nlicense_name: own\nlicense_link: LICENSE\n---\n")
    assert base_of({"name": str(tmp_path / "my-model")}) == BaseModel("my-model", False, "", Licence("other", "own", "LICENSE"))
    assert base_of({"name": str(tmp_path / "gone")}) == BaseModel("gone", False)
    assert base_of({"name": str(tmp_path / "gone")}, licence="apache-2.0").licence == Licence("apache-2.0")


@pytest.mark.parametrize("card", ["no metadata", "---\nlicense: [a, b]\n---\n", "---\n: {\n---\n", "---\nlicense:\n---\n"])
def test_a_card_without_a_plain_licence_leaves_it_unknown(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_text(card)
    assert base_of({"name": str(tmp_path)}).licence is None
