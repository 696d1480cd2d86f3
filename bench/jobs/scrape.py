"""What a process says of itself in the Prometheus text format."""

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
    """A histogram with all of its labels together; ``buckets`` counts up to each upper bound."""

    count: float
    total: float
    buckets: Mapping[float, float]

    def since(self, earlier: "Histogram") -> "Histogram":
        """What was observed since ``earlier``."""
        buckets = {bound: count - earlier.buckets.get(bound, 0.0) for bound, count in self.buckets.items()}
        return Histogram(self.count - earlier.count, self.total - earlier.total, buckets)

    @property
    def mean(self) -> float | None:
        """The mean of what was observed, None of nothing."""
        return self.total / self.count if self.count else None

    def bound(self, percent: float) -> float | None:
        """The least upper bound of a bucket that at least ``percent`` of the values do not exceed; None of nothing."""
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
        """The sum of all samples of this name."""
        return sum(sample.value for sample in self._samples.get(name, ()))

    def by_label(self, name: str, label: str) -> Counter[str]:
        """The samples of this name by one of their labels."""
        found: Counter[str] = Counter()
        for sample in self._samples.get(name, ()):
            found[sample.labels[label]] += int(sample.value)
        return found

    def histogram(self, name: str) -> Histogram:
        """The histogram of this name; an empty one where there is none, as before its first observation."""
        buckets: defaultdict[float, float] = defaultdict(float)
        for sample in self._samples.get(f"{name}_bucket", ()):
            buckets[float(sample.labels["le"])] += sample.value
        return Histogram(self.total(f"{name}_count"), self.total(f"{name}_sum"), buckets)


def read_metrics(url: str) -> Scrape:
    """Read ``url``/metrics; a certificate is not looked at. Raises OSError."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT, context=unverified) as answer:
        return Scrape(answer.read().decode())
