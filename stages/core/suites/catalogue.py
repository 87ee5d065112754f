"""The public suites: where each is published, which files hold a local copy, and how long an answer may be.

`revision` pins the publisher's commit on the Hugging Face hub. If it is empty, the first fetch takes the newest commit, which is
kept from then on (flows/suites/suite_data.py). `digest` is that of the problems as this project reads them
(problems.digest), where known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stages.core.suites import readers
from stages.core.suites.problems import Problem


@dataclass(frozen=True)
class Suite:
    """One suite. `patterns` choose its files in the hub's repository, `files` are names that a local folder may have."""

    name: str
    title: str
    reader: Callable[[dict[str, Any], int], Sequence[Problem]]
    files: tuple[str, ...]
    repository: str
    revision: str
    patterns: tuple[str, ...]
    size: int
    licence: str
    max_new_tokens: int
    digest: str = ""


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "humaneval-plus",
            "HumanEval+",
            readers.evalplus,
            ("HumanEvalPlus.jsonl", "HumanEvalPlus.jsonl.gz"),
            "evalplus/humanevalplus",
            "aa0d916268b1c17e84e881e9bd460508dd2fd308",
            ("data/test-*.parquet",),
            164,
            "Apache-2.0 (HumanEval: MIT)",
            1024,
        ),
        Suite(
            "mbpp-plus",
            "MBPP+",
            readers.evalplus,
            ("MbppPlus.jsonl", "MbppPlus.jsonl.gz"),
            "evalplus/mbppplus",
            "",
            ("data/test-*.parquet",),
            378,
            "Apache-2.0 (MBPP: CC-BY-4.0)",
            1024,
        ),
        Suite(
            "livecodebench",
            "LiveCodeBench, code generation",
            readers.livecodebench,
            ("livecodebench.jsonl", "test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl"),
            "livecodebench/code_generation_lite",
            "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
            ("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl"),
            880,
            "CC (variant not stated); contest sites' terms",
            8096,
        ),
        Suite(
            "aime24",
            "AIME 2024",
            readers.competition,
            ("aime24.jsonl",),
            "HuggingFaceH4/aime_2024",
            "",
            ("data/train-*.parquet",),
            30,
            "not stated",
            16000,
        ),
        Suite(
            "aime25",
            "AIME 2025",
            readers.competition,
            ("aime25.jsonl",),
            "MathArena/aime_2025",
            "c94da77eb22bbd6439e62a323bec18493a421302",
            ("data/train-*.parquet",),
            30,
            "CC BY-NC-SA 4.0",
            16000,
        ),
        Suite(
            "amc23",
            "AMC 2023",
            readers.competition,
            ("amc23.jsonl",),
            "zwhe99/amc23",
            "f9810c0439cd3c670ec885d328a2f06a87f3694a",
            ("data/*.parquet", "*.parquet", "*.jsonl"),
            40,
            "not stated",
            16000,
        ),
        Suite(
            "math500",
            "MATH-500",
            readers.math500,
            ("math500.jsonl",),
            "HuggingFaceH4/MATH-500",
            "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
            ("test.jsonl",),
            500,
            "MIT (contest text disputed)",
            16000,
        ),
        Suite(
            "minerva",
            "Minerva (OCW)",
            readers.minerva,
            ("minerva_math.jsonl", "minerva.jsonl"),
            "math-ai/minervamath",
            "",
            ("data/*.parquet", "*.jsonl"),
            272,
            "CC BY-NC-SA 4.0",
            16000,
        ),
        Suite(
            "gsm8k",
            "GSM8K",
            readers.gsm8k,
            ("gsm8k.jsonl",),
            "openai/gsm8k",
            "740312add88f781978c0658806c59bc2815b9866",
            ("main/test-*.parquet",),
            1319,
            "MIT",
            2048,
        ),
        Suite(
            "olympiadbench",
            "OlympiadBench, English, text only, open answers",
            readers.olympiadbench,
            ("olympiadbench.jsonl",),
            "Hothan/OlympiadBench",
            "",
            ("OlympiadBench/OE_TO_maths_en_COMP/*.parquet",),
            675,
            "Apache-2.0",
            16000,
        ),
        Suite(
            "cruxeval",
            "CRUXEval, output and input prediction",
            readers.cruxeval,
            ("cruxeval.jsonl",),
            "cruxeval-org/cruxeval",
            "",
            ("*.jsonl",),
            1600,
            "MIT",
            1024,
        ),
    )
}
