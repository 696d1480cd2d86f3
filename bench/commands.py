"""The page on the command line, `docs/cli.md`, as `--help` of each command has it.

    python -m bench.commands            prints it
    python -m bench.commands --write    writes the page

A test compares the page with the commands.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from unittest.mock import patch

from bench.generated import ROOT, offer_page
from serried.cli.app import COMMANDS, run
from serried.cli.exits import ExitCode

PAGE = ROOT / "docs" / "cli.md"

_WIDTH = "100"

_HEAD = """# The command line

`serried` answers questions about gangs, and checks an installation. `kubectl serried` is the same. This page is made
from `--help` by `python -m bench.commands --write`.

```sh
serried explain job/train -n team    # why it waits, and what would make it fit
serried queue                        # who waits, and who is first
serried top                          # how full the racks are
serried check                        # what is wrong with the installation
```

## How it finds Serried

Without `--server` it asks the API server, with your kubeconfig, to pass requests on to the extender's pod. No
port-forward is needed. The pod is found in the namespace `serried-system` (`--serried-namespace`) by the labels
`app.kubernetes.io/name: serried` and `app.kubernetes.io/component: scheduler`. Of several extenders the one that
leads is asked. An administrator has the rights for that; others need the Role `serried-commands` of that namespace. The
extender is shown a token that is made for the ServiceAccount `serried-debug-reader`, or that of `--token-file`, never
your own ([who may look](operations.md#who-may-look)).

With `--server URL`, or the variable `SERRIED_SERVER`, it asks that address: the extender's `--ops-listen`. A
port-forward needs no token: `--server http://localhost:8912`. Over the network take `https://`, `--token-file` and
`--certificate-authority`.

`check` reads from the API server as well. The rights of Serried's ServiceAccounts it asks for by SubjectAccessReview,
which needs an administrator. What you may not read is listed as `unknown`, and the rest is checked.

## Output and exit codes

`-o json` and `-o yaml` write what `/debug` answers; `explain` always writes a list. Messages go to standard error.

| exit code | meaning |
|---|---|
"""

_AFTER_CODES = """
`check` ends with 1 if it finds an error; `--fail-on warning` makes it 1 for a warning, too, `--fail-on never` never.

## As a plugin of kubectl, and completion

The package brings `kubectl-serried`; with it in the `PATH`, `kubectl serried queue` works.
`kubectl_complete-serried`, in the same place, completes it. For the command itself: `serried --install-completion`.

## Commands
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it."""
    return offer_page(PAGE, render, arguments, program="python -m bench.commands", about=__doc__ or "")


def render() -> str:
    """The page."""
    codes = "".join(f"| {code.number} | {code.meaning} |\n" for code in ExitCode)
    return _HEAD + codes + _AFTER_CODES + "".join(_render_commands())


def _render_commands() -> Iterator[str]:
    for command in COMMANDS:
        written = io.StringIO()
        with patch.dict(os.environ, COLUMNS=_WIDTH), redirect_stdout(written):
            run([command.name, "--help"], "serried")
        yield f"\n### serried {command.name}\n\n```text\n{written.getvalue().strip()}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
