"""Means over generations with standard errors, for figures and alarms.

Attempts at one task, or proposals from one prompt, resemble each other, so each such cluster counts as one observation: its mean.
The standard error is the deviation of cluster means (Bessel-corrected) over the root of their number; undefined for one cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Series:
    """One number per generation: its mean, its standard error (NaN if undefined) and its number of clusters."""

    generations: np.ndarray
    mean: np.ndarray
    stderr: np.ndarray
    clusters: np.ndarray

    def __bool__(self) -> bool:
        return len(self.generations) > 0

    def clusters_text(self) -> str:
        """Format the number of clusters per generation, as `12` or `9 to 12`."""
        low, high = int(self.clusters.min()), int(self.clusters.max())
        return f"{low}" if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error (NaN where undefined) and its number of clusters."""

    mean: float
    stderr: float
    clusters: int


def only(table: pa.Table, **values: str | int | bool) -> pa.Table:
    """The rows whose columns have these values."""
    for name, value in values.items():
        table = table.filter(pc.equal(table[name], value))
    return table


def series(table: pa.Table, value: str, cluster: str | Sequence[str]) -> Series:
    """The mean of column `value` in each generation; NaN and null values are left out."""
    keys = ["generation", *([cluster] if isinstance(cluster, str) else cluster)]
    means = cluster_means(table, value, keys)
    generations, places = np.unique(means["generation"].to_numpy(), return_inverse=True)
    values = means["mean"].to_numpy()
    counts = np.bincount(places, minlength=len(generations))
    mean = np.bincount(places, weights=values, minlength=len(generations)) / np.maximum(counts, 1)
    squares = np.bincount(places, weights=(values - mean[places]) ** 2, minlength=len(generations))
    with np.errstate(divide="ignore", invalid="ignore"):
        stderr = np.sqrt(squares / (counts - 1) / counts)
    return Series(generations, mean, stderr, counts)


def estimate(table: pa.Table, value: str, cluster: str | Sequence[str]) -> Estimate:
    """The mean of column `value` over all rows."""
    values = cluster_means(table, value, [cluster] if isinstance(cluster, str) else list(cluster))["mean"].to_numpy()
    if not len(values):
        return Estimate(float("nan"), float("nan"), 0)
    stderr = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Estimate(float(values.mean()), stderr, len(values))


def cluster_means(table: pa.Table, value: str, keys: list[str]) -> pa.Table:
    """The mean of column `value` for each combination of the keys, as column `mean`; NaN and null values are left out."""
    values = table[value].cast(pa.float64())
    data = table.select(keys).append_column("__value", values)
    data = data.filter(pc.is_finite(values))
    return data.group_by(keys, use_threads=False).aggregate([("__value", "mean")]).rename_columns([*keys, "mean"])
