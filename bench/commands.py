"""The page on the command line, `docs/cli.md`, as `--help` of each command has it.

    python -m bench.commands            prints it
    python -m bench.commands --write    writes the page

A test compares the page with the commands.
"""

import functools
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from unittest.mock import patch

from bench.generated import ROOT, offer_page
from serried.cli.app import COMMANDS, run
from serried.cli.output import ExitCode

PAGE = ROOT / "docs" / "cli.md"

_WIDTH = "100"

_OPTION = re.compile(r"^  -.*\n(?:   +\S.*\n)*", re.MULTILINE)
"""An option in a help text, with the lines of its sentence."""

_NAME = re.compile(r"^  (--?[a-zA-Z-]+)", re.MULTILINE)

_REACHING = ("--server", "--kubeconfig", "--context", "--serried-namespace", "--token-file", "--certificate-authority")
"""How a command reaches Serried: options that all commands have which ask it."""

_HEAD = """# The command line

`serried` shows the state of gangs and checks an installation. `kubectl serried` is the same command. This page is
generated from `--help` (`python -m bench.commands --write`).

## How does it find Serried?

The command takes credentials in kubectl's order, and reaches the leader's pod through the API server, without a
port-forward. It finds the pod by the labels `app.kubernetes.io/name: serried` and `app.kubernetes.io/component:
scheduler`. Users who are no administrators need the Role `serried-commands` ([who may
look](operations.md#who-may-look-at-metrics-and-debug-pages)).

With a port-forward use `--server http://localhost:8912`; over the network `https://`, `--token-file` and
`--certificate-authority`.

`check` reviews the rights of Serried's ServiceAccounts, which only administrators may do. What you may not read is
listed as `unknown`.

## How do I name a gang?

A gang is called as its Job is: `job/train`, `job train` or `train`, and `team/job/train` in another namespace. Names
of PodGroups, JobSets, LeaderWorkerSets, Workloads and pods lead to it, too. The namespace is that of your context.

## What do output and exit codes mean?

`-o json` and `-o yaml` write the answer of `/debug`, `explain` a list, with times in UTC. Tables have local times, and
are as wide as the terminal, or COLUMNS. Messages go to standard error.

| exit code | meaning |
|---|---|
"""

_AFTER_CODES = """
`check` ends with 1 if it finds an error, or what `--fail-on` says.

## How do I get the kubectl plugin and completion?

The package `serried-cli` has the commands alone, without `replay` and the processes; `serried` has all. Both install
`kubectl-serried` and `kubectl_complete-serried`. With both in the `PATH`, `kubectl serried` works and completes. Its
options stand behind the command: `kubectl serried queue -n team`. To complete `serried` itself, run `serried
--install-completion`.

## Which commands are there?

Several commands have these options; each says which:

```text
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it."""
    return offer_page(PAGE, render, arguments, program="python -m bench.commands", about=__doc__ or "")


def render() -> str:
    """The page."""
    codes = "".join(f"| {code.number} | {code.meaning} |\n" for code in ExitCode)
    helps = {command.name: _ask(command.name) for command in COMMANDS}
    counts = Counter(option for text in helps.values() for option in set(_OPTION.findall(text)))
    shared = [option for option in dict.fromkeys(_OPTION.findall("".join(helps.values()))) if counts[option] > 1]
    shared.sort(key=lambda option: option.startswith("  --"))
    return "".join([_HEAD, codes, _AFTER_CODES, *shared, "```\n", *_render_commands(helps, shared)])


def _render_commands(helps: Mapping[str, str], shared: Sequence[str]) -> Iterator[str]:
    for name, text in helps.items():
        names = [_NAME.findall(option)[0] for option in shared if option in text]
        alone = functools.reduce(lambda left, option: left.replace(option, ""), shared, text)
        own_names = [each for each in names if each not in _REACHING]
        reach = ", and those from --server on" if set(_REACHING) <= set(names) else ""
        more = f"  and from above: {' '.join(own_names)}{reach}\n"
        own, examples = alone.split("\n  Examples:")
        yield f"\n### serried {name}\n\n```text\n{own.rstrip()}\n{more}\n  Examples:{examples}\n```\n"


def _ask(name: str) -> str:
    """What a command says of itself."""
    written = io.StringIO()
    with patch.dict(os.environ, COLUMNS=_WIDTH), redirect_stdout(written):
        run([name, "--help"], "serried")
    return written.getvalue().strip()


if __name__ == "__main__":
    sys.exit(main())
