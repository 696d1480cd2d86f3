"""Read CPU seconds of processes and of the whole machine from /proc, to tell measured work from other work."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds that were used so far."""

    by_name: Mapping[str, float]
    """By name of the process."""

    busy: float
    """CPU seconds of the whole machine, including time that the host of a virtual machine gave to others (steal)."""

    def since(self, earlier: "Usage") -> "Usage":
        """Return the CPU seconds used since ``earlier``."""
        spent = {name: value - earlier.by_name.get(name, 0.0) for name, value in self.by_name.items()}
        return Usage(spent, self.busy - earlier.busy)

    @property
    def others(self) -> float:
        """CPU seconds of all processes that are not in ``by_name``, including steal time."""
        return max(0.0, self.busy - sum(self.by_name.values()))


def read_usage(pids: Mapping[str, int], proc: Path = Path("/proc")) -> Usage:
    """Return the usage now. A process that has ended counts as 0."""
    return Usage({name: _process_seconds(proc / str(pid) / "stat") for name, pid in pids.items()}, _busy_seconds(proc))


def _process_seconds(stat: Path) -> float:
    try:
        # The command name may contain spaces and brackets, so fields are counted from the last bracket.
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _busy_seconds(proc: Path) -> float:
    user, nice, system, _idle, _iowait, irq, soft, stolen = (
        int(field) for field in (proc / "stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + soft + stolen) / _TICKS
