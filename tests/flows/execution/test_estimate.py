"""The plan's hours on this machine's own processor."""

from pathlib import Path

from flows.execution.estimate import cpu_dtype


def test_bfloat16_without_its_units_is_computed_in_float32(tmp_path: Path) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text("flags\t\t: fpu sse2 avx512f avx512_bf16\n")
    assert cpu_dtype("bfloat16", listed) == "bfloat16"
    listed.write_text("flags\t\t: fpu sse2 avx2\n")
    assert cpu_dtype("bfloat16", listed) == "float32"
    assert cpu_dtype("bfloat16", tmp_path / "absent") == "float32"
    assert cpu_dtype("float32", listed) == "float32"
