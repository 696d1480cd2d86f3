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

_NAME = re.compile(r"^  (?:-\w, )?(--[a-z-]+)", re.MULTILINE)

_HEAD = """# The command line

`serried` shows the state of gangs and checks an installation. `kubectl serried` is the same command. This page is
generated from `--help` (`python -m bench.commands --write`).

## How it finds Serried

By default the command uses your kubeconfig and reaches the leader's pod through the API server, without a port-forward.
It finds the pod by the labels `app.kubernetes.io/name: serried` and `app.kubernetes.io/component: scheduler`. Users who
are no administrators need the Role `serried-commands` ([who may look](operations.md#who-may-look)).

With `--server URL` the command asks the extender at that address (`--ops-listen`). With a port-forward you need no
token: `--server http://localhost:8912`. Over the network use `https://`, `--token-file` and `--certificate-authority`.

`check` also reads from the API server. It checks the rights of Serried's ServiceAccounts by SubjectAccessReview, which
only administrators may create. What you may not read, or the extender does not answer, is listed as `unknown`.

## Output and exit codes

`-o json` and `-o yaml` write the answer of `/debug`, `explain` a list. Messages go to standard error.

| exit code | meaning |
|---|---|
"""

_AFTER_CODES = """
`check` ends with 1 if it finds an error, or what `--fail-on` says.

## Plugin of kubectl, and shell completion

The package installs `kubectl-serried` and `kubectl_complete-serried`. With both in the `PATH`, `kubectl serried`
works and completes. To complete `serried` itself, run `serried --install-completion`.

## Commands

Each command has all of these options, unless it says which ones:

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
    shared = [option for option in dict.fromkeys(_OPTION.findall("".join(helps.values()))) if counts[option] > 2]
    return "".join([_HEAD, codes, _AFTER_CODES, *shared, "```\n", *_render_commands(helps, shared)])


def _render_commands(helps: Mapping[str, str], shared: Sequence[str]) -> Iterator[str]:
    for name, text in helps.items():
        names = [_NAME.findall(option)[-1] for option in shared if option in text]
        alone = functools.reduce(lambda left, option: left.replace(option, ""), shared, text)
        more = f"  and from above: {' '.join(names)}\n" if len(names) < len(shared) else ""
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
