from collections.abc import Callable

import pytest

from cli import main
from serried.api.names import Key
from serried.settings import controller_settings, extender_settings


def test_defaults_listen_for_verbs_on_loopback_only() -> None:
    settings = extender_settings([], {"POD_NAME": "serried-0"})
    assert settings.filter_listen == ("127.0.0.1", 8910)
    assert settings.bind_listen == ("127.0.0.1", 8911)
    assert settings.ops_listen == ("", 8912)
    assert settings.lease == Key("serried-system", "serried")
    assert settings.lease_holder_prefix == "serried-0"
    assert settings.kubeconfig is None
    assert settings.schedulers == {"serried"}
    assert (settings.barrier_deadline, settings.barrier_idle) == (300.0, 60.0)
    assert controller_settings([], {}).workers == 32


def test_the_holder_is_the_host_where_no_pod_name_is_known() -> None:
    assert extender_settings([], {}).lease_holder_prefix


def test_a_flag_goes_before_the_environment_and_that_before_the_default() -> None:
    environ = {"SERRIED_API": "native", "SERRIED_WORKERS": "3"}
    settings = controller_settings(["--api", "fallback"], environ)
    assert (settings.api, settings.workers, settings.log_level) == ("fallback", 3, "info")


def test_an_empty_lease_means_always_active() -> None:
    assert extender_settings(["--lease="], {}).lease is None
    assert extender_settings([], {"SERRIED_LEASE": ""}).lease is None


def test_scheduler_names_of_the_environment() -> None:
    assert controller_settings([], {"SERRIED_SCHEDULER_NAME": "c, d"}).schedulers == {"c", "d"}


def test_only_the_environment_that_is_handed_over_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERRIED_WORKERS", "7")
    monkeypatch.setenv("SERRIED_SCHEDULER_NAME", "else")
    settings = controller_settings([], {})
    assert settings.workers == 32
    assert settings.schedulers == {"serried"}


def test_help_shows_choices_units_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        extender_settings(["--help"], {"POD_NAME": "serried-0"})
    assert end.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "--api {auto,native,fallback} API of Workloads and PodGroups: that of Kubernetes (native) or" in said
    assert "--barrier-idle SECONDS longest time" in said
    assert "--queue-ageing SECONDS|off seconds of waiting" in said
    assert "off: never (default: 86400)" in said
    assert "(default: serried-0)" in said


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["--scheduler-name", "a,b"], id="with commas"),
        pytest.param(["--scheduler-name", "a", "--scheduler-name=b"], id="repeated"),
    ],
)
def test_scheduler_names(argv: list[str]) -> None:
    assert controller_settings(argv, {"SERRIED_SCHEDULER_NAME": "c"}).schedulers == {"a", "b"}


def test_an_ipv6_address_comes_in_brackets() -> None:
    assert controller_settings(["--ops-listen", "[::1]:0"], {}).ops_listen == ("::1", 0)


def test_operations_may_be_asked_for_on_every_address() -> None:
    assert controller_settings(["--ops-listen", ":0"], {}).ops_listen == ("", 0)
    assert controller_settings(["--ops-listen", "0.0.0.0:1"], {}).ops_listen == ("0.0.0.0", 1)  # noqa: S104


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--api", "beta"),
        ("--log-level", "loud"),
        ("--scheduler-name", ""),
        ("--scheduler-name", "a b"),
        ("--filter-listen", "8910"),
        ("--filter-listen", ":8910"),
        ("--bind-listen", "127.0.0.1:99999"),
        ("--bind-listen", "::1:8911"),
        ("--ops-listen", "127.0.0.1:http"),
        ("--ops-listen", ":"),
        ("--ops-listen", ":::8912"),
        ("--lease", "serried"),
        ("--lease", "a/b/c"),
        ("--lease-holder-prefix", ""),
        ("--hold", "never"),
        ("--hold-limit", "0"),
        ("--hold-switch", ""),
        ("--barrier-deadline", "0"),
        ("--barrier-deadline", "900"),
        ("--barrier-idle", "nan"),
        ("--barrier-idle", "inf"),
        ("--barrier-idle", "-1"),
        ("--bind-concurrency", "1.5"),
        ("--bind-concurrency", "-4"),
        ("--stamp", "yes"),
        ("--stamp-window", "many"),
        ("--job-unknown-deadline", "soon"),
        ("--repair-seconds", "-1"),
        ("--broken-grace", "0"),
        ("--broken-gangs", "delete"),
        ("--disrupted-gangs", "evict"),
        ("--preemption", "yes"),
        ("--preempt-by", "force"),
        ("--preemption-timeout", "0"),
        ("--preemption-spare", "-1"),
    ],
)
def test_a_bad_value_ends_the_start_and_names_its_origin(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        extender_settings([f"{flag}={value}"], {})
    assert end.value.code == 2
    assert f"{flag}: {value!r} must" in capsys.readouterr().err
    variable = "SERRIED_" + flag[2:].replace("-", "_").upper()
    with pytest.raises(SystemExit):
        extender_settings([], {variable: value})
    assert f"{variable}: {value!r} must" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        pytest.param([], {"POD_NAMESPACE": "serried-system"}, id="of this namespace"),
        pytest.param(["--lease=gangs/serried"], {"POD_NAMESPACE": "gangs"}, id="both elsewhere"),
        pytest.param(["--lease="], {"POD_NAMESPACE": "gangs"}, id="no Lease"),
        pytest.param(["--lease=gangs/serried"], {}, id="outside of a pod"),
    ],
)
def test_the_lease_is_in_the_namespace_of_the_pod(argv: list[str], environ: dict[str, str]) -> None:
    for read in (extender_settings, controller_settings):
        lease = read(argv, environ).lease
        assert lease is None or lease.namespace == environ.get("POD_NAMESPACE", "gangs")


@pytest.mark.parametrize("read", [extender_settings, controller_settings])
def test_manifests_that_were_moved_to_another_namespace_end_the_start(
    read: Callable[[list[str], dict[str, str]], object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        read(["--lease=serried-system/one"], {"POD_NAMESPACE": "gangs"})
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "--lease: 'serried-system/one' is not in the namespace of this pod, gangs." in said
    assert "remove `namespace:`, or install with Helm" in said


def test_no_seconds_at_all_keep_no_slot() -> None:
    assert extender_settings(["--repair-seconds=0"], {}).repair_seconds == 0


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(SystemExit):
        controller_settings(["--barrier-idle=5"], {})


_NO_PROFILES = "--profiling, SERRIED_PROFILING: /debug/profile was removed: remove this setting, and use py-spy"


@pytest.mark.parametrize(
    ("argv", "environ", "said"),
    [
        (["--profiling", "on"], {}, _NO_PROFILES),
        (["--profiling=on"], {}, _NO_PROFILES),
        ([], {"SERRIED_PROFILING": "off"}, _NO_PROFILES),
        (["--repair-share=100"], {}, "Serried has only one share now: remove this setting, or set --namespace-share"),
    ],
)
def test_a_flag_that_is_gone_is_refused_with_what_to_do_instead(
    argv: list[str], environ: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        extender_settings(argv, environ)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler"]) == 2
    assert "scheduler" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert main([]) == 2


TLS = ("--tls-cert-file=/tls.crt", "--tls-private-key-file=/tls.key")
AUTHORITY = "--client-ca-file=/ca.crt"


class TestVerbsThatLeaveLoopback:
    @pytest.mark.parametrize("flag", ["--filter-listen", "--bind-listen"])
    @pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "serried.example"])  # noqa: S104
    def test_without_certificates_the_start_ends_with_a_sentence(
        self, flag: str, host: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as end:
            extender_settings([f"{flag}={host}:8910"], {})
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert f"{flag}: every client that reaches '{host}:8910' could bind pods" in said
        assert "--client-ca-file" in said
        assert "--insecure-verbs on" in said

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
    def test_on_loopback_they_need_none(self, host: str) -> None:
        assert extender_settings([f"--filter-listen={host}:8910"], {}).client_ca_file is None

    def test_with_certificates_they_may_be_anywhere(self) -> None:
        settings = extender_settings(["--filter-listen=0.0.0.0:1", *TLS, AUTHORITY, "--client-names=a, b"], {})
        assert settings.client_names == {"a", "b"}

    def test_who_says_so_gets_plain_http(self) -> None:
        assert extender_settings(["--bind-listen=0.0.0.0:1", "--insecure-verbs=on"], {}).insecure_verbs == "on"

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            pytest.param(
                TLS[:1], "set --tls-cert-file and --tls-private-key-file together", id="a certificate without its key"
            ),
            pytest.param(
                TLS[1:], "set --tls-cert-file and --tls-private-key-file together", id="a key without its certificate"
            ),
            pytest.param([AUTHORITY], "needs --tls-cert-file", id="an authority without a certificate"),
            pytest.param(["--client-names=a"], "needs --client-ca-file", id="names without an authority"),
            pytest.param([*TLS, "--client-names=a"], "needs --client-ca-file", id="names of nobody"),
        ],
    )
    def test_halves_of_it_are_refused(self, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            extender_settings(argv, {})
        assert said in capsys.readouterr().err
