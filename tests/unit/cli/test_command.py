"""The command as a whole: processes, help, completion, and the same as a plugin of kubectl."""

import os
import subprocess
import sys

import pytest

from cli import app as kubectl
from cli import main
from cli.app import COMMANDS, Command
from cli.output import ExitCode
from serried import __version__
from tests.support.pod_proxy import PodProxy
from tests.unit.cli.test_queue import waiting

IMPORTED = "import sys, {module}; print(*sorted({{'typer', 'rich', 'httpx'}} & sys.modules.keys()))"


@pytest.mark.parametrize("module", ["extender.process", "controller.process", "cli"])
def test_a_process_does_not_load_what_people_need(module: str) -> None:
    code = IMPORTED.format(module=module)
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize("words", [["--help"], ["explain", "--help"], ["queue", "--help"], ["top", "-o", "x"]])
def test_what_asks_nobody_does_not_load_what_asks(words: list[str]) -> None:
    code = f"import sys; from cli import main; main({words}); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    unneeded = {"rich", "kubernetes", "yaml", "extender", "prometheus_client", "aiohttp", "httpx"}
    assert unneeded.isdisjoint(loaded.stderr.split()), unneeded & set(loaded.stderr.split())


def test_the_commands_load_nothing_of_the_server() -> None:
    loading = "[command.load() for command in COMMANDS if command.name != 'replay']"
    code = f"import sys, cli.transport; from cli.app import COMMANDS; {loading}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    server = {"aiohttp", "yarl", "prometheus_client", "kubernetes", "fastapi", "starlette", "uvicorn", "cryptography"}
    rooms = {"serried.cluster", "serried.plan", "serried.ops", "serried.settings", "extender.wiring", "controller"}
    assert (server | rooms).isdisjoint(loaded.stdout.split())


@pytest.mark.parametrize("process", ["extender", "controller"])
def test_flags_of_a_process_are_its_own(process: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([process, "--help"])
    assert ended.value.code == 0
    assert f"usage: serried {process}" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_and_both_processes(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    listed = {
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and line.strip()
    }
    assert {command.name for command in COMMANDS} | {"extender", "controller"} <= listed


@pytest.mark.parametrize("width", ["80", "100"])
def test_the_list_of_commands_is_not_cut(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "..." not in shown.partition("Commands:")[2]
    assert all(command.about in shown for command in COMMANDS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["quue"], "No such command 'quue'. Did you mean 'queue'?", id="a command"),
        pytest.param(["queue", "--limt", "3"], "No such option: --limt. Did you mean --limit?", id="an option"),
        pytest.param(["queue", "-o", "wiede"], "'yaml'. Did you mean wide?", id="a format"),
        pytest.param(["queue", "-o", "jsonpath={.x}"], "For single fields use -o json and jq.", id="of kubectl"),
        pytest.param(["gangs", "-o", "custom-columns=A:.x"], "For single fields use -o json and jq.", id="another"),
        pytest.param(["check", "--only", "righs"], "Did you mean rights?", id="an area"),
        pytest.param(["queue", "-o", "qqq"], "'qqq' is not one of 'table', 'wide'", id="no format at all"),
        pytest.param(["explain"], "Missing argument 'NAME'", id="no name"),
        pytest.param(["queue", "--limit", "x"], "Invalid value for '--limit'", id="no number"),
    ],
)
def test_a_wrong_command_line_is_said_first_and_in_short(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    first, second = shown.err.splitlines()
    assert first.startswith("serried")
    assert said in first
    assert second.startswith("Run 'serried")
    assert not shown.out


@pytest.mark.parametrize(
    ("process", "flag"),
    [("extender", "--hold=foo"), ("extender", "--log-level=foo"), ("controller", "--log-level=foo")],
)
def test_a_wrong_flag_of_a_process_is_said_in_short(
    process: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([process, flag])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"serried {process}: error: ")
    assert len(shown.splitlines()) == 2


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["queue", "-A"], id="a table"),
        pytest.param(["queue", "-A", "-o", "json"], id="a document"),
        pytest.param(["queue", "-A", "--watch"], id="a watch"),
        pytest.param(["--help"], id="the help"),
        pytest.param(["--version"], id="the version"),
        pytest.param(["install", "--dry-run", "--scheduler-version", "1.37.1"], id="manifests"),
    ],
)
def test_who_reads_no_further_ends_it_as_other_programs_end(proxy: PodProxy, words: list[str]) -> None:
    """The reader ends as ``head -1`` does: no traceback then, and no exit code that stands for the answer no."""
    rows = [waiting(place, f"gang-{place}") for place in range(1, 2_000)]
    proxy.answer("/debug/queue", {"head": None, "waiting": rows, "leftOff": 0})
    code = f"import sys; from cli import main; sys.exit(main({words}))"
    environment = os.environ | {"SERRIED_SERVER": proxy.url}
    out, end = os.pipe()
    os.close(out)
    asked = subprocess.run(
        [sys.executable, "-c", code], check=False, stdout=end, stderr=subprocess.PIPE, env=environment, text=True
    )
    os.close(end)
    assert (asked.returncode, "Traceback" in asked.stderr, "Exception" in asked.stderr) == (141, False, False)


def test_no_command_is_answered_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in "".join(capsys.readouterr())


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == kubectl.main(["--version"]) == 0
    assert capsys.readouterr().out == f"serried {__version__}\n" * 2


@pytest.mark.parametrize("command", COMMANDS, ids=[command.name for command in COMMANDS])
def test_the_help_of_a_command_ends_with_examples_of_it(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command.name, "--help"]) == 0
    _, _, examples = capsys.readouterr().out.partition("Examples:")
    assert f"serried {command.name}" in examples


@pytest.mark.parametrize("command", COMMANDS, ids=[command.name for command in COMMANDS])
def test_every_command_is_one_of_kubectl(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main([command.name, "--help"]) == 0
    assert f"Usage: kubectl serried {command.name} " in capsys.readouterr().out


def test_kubectl_runs_the_same_commands(proxy: PodProxy, capsys: pytest.CaptureFixture[str]) -> None:
    proxy.answer("/debug/queue", {"head": None, "waiting": [], "leftOff": 0})
    assert kubectl.main(["queue", "-A", "--server", proxy.url]) == 0
    assert capsys.readouterr().out == "No gang waits for resources.\n"
    assert kubectl.main(["queue", "--server", "nonsense"]) == 2
    assert capsys.readouterr().err.startswith("kubectl serried: --server")


def test_a_mistake_in_a_command_is_no_answer(
    proxy: PodProxy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("waiting")

    monkeypatch.setattr("cli.lists.draw_queue", fail)
    proxy.answer("/debug/queue", {"head": None, "waiting": [], "leftOff": 0})
    assert main(["queue", "--server", proxy.url]) == ExitCode.BROKEN.number
    said = capsys.readouterr().err
    assert "KeyError: 'waiting'" in said
    assert "This is a defect in Serried" in said


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        pytest.param(["que"], ["queue"], id="a command"),
        pytest.param(["queue", "--serried"], ["--serried-namespace"], id="an option"),
        pytest.param(["queue", "-o", "y"], ["yaml"], id="a value"),
    ],
)
def test_kubectl_completes(
    words: list[str], proposed: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SERRIED_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
        monkeypatch.setenv(name, "")
    assert kubectl.complete(words) == 0
    assert capsys.readouterr().out.split() == [*proposed, ":4"]


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"_SERRIED_COMPLETE": "complete_bash", "COMP_WORDS": "serried que", "COMP_CWORD": "1"}, id="bash"),
        pytest.param({"_SERRIED_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "serried que"}, id="zsh"),
        pytest.param(
            {
                "_SERRIED_COMPLETE": "complete_fish",
                "_TYPER_COMPLETE_ARGS": "serried que",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
            id="fish",
        ),
    ],
)
def test_a_shell_completes(
    variables: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    assert "queue" in capsys.readouterr().out
