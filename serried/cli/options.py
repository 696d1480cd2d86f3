"""The options that several commands have, so that each is called and explained alike everywhere."""

from typing import Annotated

import typer

from serried.cli.output import OutputFormat

Server = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="SERRIED_SERVER",
        show_default=False,
        help="The extender's address for operations, for example http://localhost:8912. "
        "Without it the API server is asked to pass requests on to the extender's pod.",
    ),
]

TokenFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        envvar="SERRIED_TOKEN_FILE",
        show_default=False,
        help="The bearer token that is shown to the extender. Without it, and without --server, one is made for the "
        "ServiceAccount serried-debug-reader.",
    ),
]

Authority = Annotated[
    str,
    typer.Option(
        "--certificate-authority",
        metavar="FILE|any",
        envvar="SERRIED_CERTIFICATE_AUTHORITY",
        show_default=False,
        help="With --server https://...: who has to have signed the extender's certificate; any: whoever it was.",
    ),
]

Kubeconfig = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="The kubeconfig; without it the service account in a pod, else KUBECONFIG, else ~/.kube/config.",
    ),
]

Context = Annotated[
    str,
    typer.Option(metavar="NAME", show_default=False, help="The context of the kubeconfig; without it the current one."),
]

Home = Annotated[
    str, typer.Option("--serried-namespace", metavar="NAME", help="The namespace in which the extender's pods are.")
]

Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", metavar="NAME", show_default=False, help="The namespace; without it the context's own."
    ),
]

OneNamespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", show_default=False, help="Only this namespace.")
]

Limit = Annotated[int, typer.Option(min=0, metavar="NUMBER", help="How many are shown.")]

Output = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="A table for people; JSON or YAML, as /debug answers, for programs."),
]
