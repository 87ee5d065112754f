"""A pretrained model in the type that its run computes in: arithmetic passes the check, a lost adapter does not."""

import numpy as np
import pyarrow as pa
import pytest

from flows.backend import Backend
from stages.core.engines.agreement import Disagreement, check_agreement, compare, probe
from stages.core.lora.adapter import Adapter

pytestmark = pytest.mark.real


def test_engine_and_trainer_agree_and_a_lost_adapter_is_caught(real_backend: Backend) -> None:
    fresh, rng = real_backend.initial_adapter(), np.random.default_rng(0)
    trained = {
        name: rng.normal(0, 0.03, array.shape).astype(np.float32) if "lora_B" in name else array
        for name, array in fresh.weights.items()
    }
    adapters, bounds, scorer = {"s0": Adapter(trained, {}, 0)}, real_backend.drift_bounds(), real_backend.scorer()
    found = check_agreement(real_backend.engine(adapters), scorer, adapters, 1.0, bounds)
    print(f"{real_backend.dtype}: {found['s0']}, bounds {bounds}")
    lost = probe(real_backend.engine({"s0": fresh}), {"s0": fresh}, 1.0)
    digests = pa.array(probe(real_backend.engine(adapters), adapters, 1.0)["adapter_sha256"].to_pylist())
    claimed = lost.set_column(lost.schema.get_field_index("adapter_sha256"), lost.schema.field("adapter_sha256"), digests)
    with pytest.raises(Disagreement, match="'s0'"):
        compare(scorer, adapters, claimed, bounds)
