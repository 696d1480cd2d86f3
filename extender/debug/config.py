"""``/debug/config``: the settings that the process has read."""

import re

from fastapi import APIRouter

from extender.debug.view import View, exemplify
from serried import __version__
from serried.settings import CommonSettings, describe_settings


class SettingView(View):
    """One flag. A value is written as on the command line, "" for none."""

    flag: str

    variable: str
    """The environment variable that means the same."""

    value: str
    """Of a URL without what may let somebody in: user, password and query are `***`."""

    default: str

    about: str
    """What it says, as `--help` has it."""


class ConfigView(View):
    """The settings."""

    version: str
    """Of Serried."""

    settings: list[SettingView]


_EXAMPLE = ConfigView(
    version="1.0.0",
    settings=[
        SettingView(
            flag="--queue-ageing",
            variable="SERRIED_QUEUE_AGEING",
            value="off",
            default="86400",
            about="waiting time after which a gang counts as one priority higher, or off",
        )
    ],
)


def conceal(value: str) -> str:
    """A value without what stands before the host of a URL, and behind its question mark."""
    # Up to the last @: a password may have others, and slashes, where nobody has escaped them.
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", value))


_USER = re.compile(r"(://).*@", re.DOTALL)
_QUERY = re.compile(r"(://[^?]*\?).+", re.DOTALL)


def config_routes(settings: CommonSettings) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/config", responses=exemplify(_EXAMPLE))
    async def show_config() -> ConfigView:
        """Every setting as it was read from flags, environment and defaults, but for secrets in URLs."""
        read = [each._replace(value=conceal(each.value)) for each in describe_settings(settings)]
        views = [SettingView(**setting._asdict()) for setting in read]
        return ConfigView(version=__version__, settings=views)

    return router
