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
        help="The address of the extender, for example http://localhost:8912. "
        "By default the command reaches the extender's pod through the API server.",
    ),
]

TokenFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        envvar="SERRIED_TOKEN_FILE",
        show_default=False,
        help="The bearer token for the extender. By default, without --server, the command creates one for the "
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
        help="With --server https://...: the authority that signed the extender's certificate; any: do not check it.",
    ),
]

Kubeconfig = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="The kubeconfig. Default: the service account in a pod, otherwise KUBECONFIG, otherwise ~/.kube/config.",
    ),
]

Context = Annotated[
    str,
    typer.Option(metavar="NAME", show_default=False, help="The context of the kubeconfig. Default: the current one."),
]

Home = Annotated[str, typer.Option("--serried-namespace", metavar="NAME", help="The namespace of the extender's pods.")]

Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", metavar="NAME", show_default=False, help="The namespace. Default: that of the context."
    ),
]

OneNamespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", show_default=False, help="Show this namespace only.")
]

Limit = Annotated[int, typer.Option(min=0, metavar="NUMBER", help="The number of rows.")]

Output = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="A table for people, or JSON or YAML for programs."),
]
