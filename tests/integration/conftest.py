"""What integration tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.backend import Backend
from flows.config import apply


@pytest.fixture(scope="module")
def real_backend(real_model: Path) -> Iterator[Backend]:
    """A pretrained model on this CPU, and one sandbox container."""
    model = {"name": str(real_model), "rank": 1, "targets": ["q_proj"], "device": "cpu"}
    made = Backend(apply({"model": model, "sandbox": {"containers": 1}}, []))
    yield made
    made.close()
