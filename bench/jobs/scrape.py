"""Read and evaluate the metrics page of a process (Prometheus text format)."""

import ssl
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram, summed over all of its labels."""

    count: float
    total: float
    """The sum of all observed values."""

    buckets: Mapping[float, float]
    """By upper bound: the number of values up to it."""

    def since(self, earlier: "Histogram") -> "Histogram":
        """Return the histogram of the values observed since ``earlier``."""
        buckets = {bound: count - earlier.buckets.get(bound, 0.0) for bound, count in self.buckets.items()}
        return Histogram(self.count - earlier.count, self.total - earlier.total, buckets)

    @property
    def mean(self) -> float | None:
        """The mean of the values; None if there are none."""
        return self.total / self.count if self.count else None

    def bound(self, percent: float) -> float | None:
        """Return the upper bound of the bucket with this percentile; None if there are no values."""
        enough = (bound for bound, count in sorted(self.buckets.items()) if count >= self.count * percent / 100)
        return next(enough) if self.count else None


class Scrape:
    """One reading of a metrics page."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append(sample)

    def total(self, name: str) -> float:
        """Return the sum of all samples of this name."""
        return sum(sample.value for sample in self._samples.get(name, ()))

    def by_label(self, name: str, label: str) -> Counter[str]:
        """Return the samples of this name, summed by the value of one label."""
        found: Counter[str] = Counter()
        for sample in self._samples.get(name, ()):
            found[sample.labels[label]] += int(sample.value)
        return found

    def histogram(self, name: str) -> Histogram:
        """Return the histogram of this name; an empty one if it is missing, as before its first observation."""
        buckets: defaultdict[float, float] = defaultdict(float)
        for sample in self._samples.get(f"{name}_bucket", ()):
            buckets[float(sample.labels["le"])] += sample.value
        return Histogram(self.total(f"{name}_count"), self.total(f"{name}_sum"), buckets)


def read_metrics(url: str) -> Scrape:
    """Read ``url``/metrics. A certificate is not verified. Raise OSError if that fails."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT, context=unverified) as answer:
        return Scrape(answer.read().decode())
