"""The memory that children of evolution are written into."""

import numpy as np

from tests.stages.core.lora.test_operators import adapter, child_of


def test_memory_serves_the_next_child_only_when_nobody_holds_it():
    parent = adapter(1)
    first, second = child_of("C1", [parent]), child_of("C1", [parent])
    held = next(iter(first.values()))
    assert not any(np.shares_memory(values, held) for values in second.values())
    del first, second
    third = child_of("C1", [adapter(2)])
    assert np.array_equal(held, next(iter(parent.values())))
    assert not any(np.shares_memory(values, held) for values in third.values())
    del third
    address = held.ctypes.data
    del held
    assert next(iter(child_of("C1", [parent]).values())).ctypes.data == address
