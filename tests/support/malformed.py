"""Parts of a run.json, and of a manifest, that are well-formed JSON of another shape than any version wrote."""

RUN_JSON = (
    {"config": []},
    {"config": None},
    {"config": {"generations": "x"}},
    {"config": {"generations": 10**400}},
    {"config": {"model": "a"}},
    {"config": {"benchmark": {"every": "x"}}},
    {"clock": []},
    {"clock": {"started": "x"}},
    {"clock": {"started": 1e300}},
    {"versions": []},
)
