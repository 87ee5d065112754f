"""A run of two generations with births, and scores of three benchmarks, one of them under hostile names."""

from flows.run.lease import hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from stages.core import tables
from tests.support import example_run

HOSTILE = "]|`x`\n---\nlicense: evil\n<script>alert(1)</script> [a](javascript:alert(2)) {{run}} \u202eback"


def build(store: FileStore, run_id: str) -> Run:
    """Write the run. Return it."""
    with hold(store, run_id) as epoch:
        found = example_run.build(Run(store, run_id, epoch))
        digest = found.history.find("adapters/s0-g0001/adapter_model.safetensors").sha256
        who = {"member_id": "s0", "role": "student", "adapter_id": "s0-g0001", "adapter_sha256": digest, "attempts": 1}
        rows = [
            who | {"suite": suite, "group": "all", "measure": measure, "score": 0.25, "stderr": error, "problems": 48}
            for suite, measure, error in (("cruxeval", "pass@1 greedy", 0.0625), (HOSTILE, HOSTILE, None))
        ]
        ref = found.write_table_at("benchmarks/x/scores.parquet", tables.table(rows, tables.SCORES), tables.SCORES)
        found.commit_benchmark("x", [], [ref], {}, {}, {})
        taught = {"adapter_id": "t0-g0001", "suite": "humaneval", "group": "all", "measure": "pass@1 greedy", "problems": 164}
        for style, tokens, score in (("chat", 1024, 0.5), ("completion", 512, 0.25)):
            scored = tables.table([rows[0] | taught | {"score": score}], tables.SCORES)
            ref = found.write_table_at(f"benchmarks/{style}/scores.parquet", scored, tables.SCORES)
            found.commit_benchmark(style, [], [ref], {}, {"question": {"style": style, "max_new_tokens": tokens}}, {})
    return found
