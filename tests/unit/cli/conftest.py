import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli import main
from tests.support.commands import Ended, Run
from tests.support.pod_proxy import KUBECONFIG, PodProxy, extender_pod

Step = Callable[[], None]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time to 09:30 UTC on the first of January, and the time zone to one an hour ahead."""
    monkeypatch.setenv("TZ", "CET-1")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("cli.output.now", lambda: datetime(2026, 1, 1, 9, 30, tzinfo=UTC).timestamp())
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def proxy() -> Iterator[PodProxy]:
    """An API server with one extender, which leads."""
    with PodProxy([extender_pod("serried-0")]) as proxy:
        proxy.answer_debug("serried-0:8912", "selfcheck", {"active": True})
        yield proxy


@pytest.fixture
def run(proxy: PodProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command of a person whose kubeconfig names that API server."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(url=proxy.url))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("SERRIED_SERVER", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def run(command: str, *rest: str) -> Ended:
        code = main([command, *rest, "--kubeconfig", str(kubeconfig)])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return run


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The steps that happen between two refreshes of a list. After the last one the user presses Ctrl-C."""
    steps: list[Step] = []
    left: Iterator[Step] = iter(steps)

    async def sleep(_: float) -> None:
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("cli.lists.asyncio.sleep", sleep)
    return steps
