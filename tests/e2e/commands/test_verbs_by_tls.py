"""A stock kube-scheduler calls the extender by TLS, with certificates on both sides that are replaced meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bench.cluster import Cluster
from tests.support.certificates import Authority
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names

pytestmark = [pytest.mark.e2e, pytest.mark.full]

NAME = "serried-scheduler"


class Secured:
    """The verbs of a cluster by TLS."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.ours = Authority(directory / "ours", "ours")
        self.theirs = Authority(directory / "theirs", "theirs")
        self.certificate, self.key = self.ours.sign("serried")

    def secure_extender(self) -> None:
        flags = (f"--tls-cert-file={self.certificate}", f"--tls-private-key-file={self.key}")
        self.cluster.restart("extender", *flags, f"--client-ca-file={self.theirs.file}")

    def secure_scheduler(self) -> None:
        """Have it call by TLS, with a certificate of today's authority."""
        certificate, key = self.theirs.sign(NAME)
        config = yaml.safe_load(self._config.read_text())
        files = {"caFile": str(self.ours.file), "certFile": str(certificate), "keyFile": str(key)}
        for entry in config["extenders"]:
            url = entry["urlPrefix"].replace("http://", "https://")
            entry |= {"urlPrefix": url, "enableHTTPS": True, "tlsConfig": files}
        path = self.directory / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config))
        self.cluster.restart("scheduler", f"--config={path}")

    def undo(self) -> None:
        empty = ("--tls-cert-file=", "--tls-private-key-file=", "--client-ca-file=")
        self.cluster.restart("extender", *empty)
        self.cluster.restart("scheduler", f"--config={self._config}")

    @property
    def _config(self) -> Path:
        return self.cluster.kubectl_program.parent / "scheduler.yaml"


@pytest.fixture
def secured(cluster: Cluster, tmp_path: Path) -> Iterator[Secured]:
    made = Secured(cluster, tmp_path)
    yield made
    made.undo()


def test_gangs_start_by_tls_also_when_the_authority_is_another_and_never_without(
    stage: ClusterStage, secured: Secured
) -> None:
    secured.secure_extender()
    stage.create_group("ring", 3, RACK)
    stage.create_pods(names("ring", 3), "ring")
    # The scheduler still calls by plain HTTP.
    eventually(
        "a call that fails",
        lambda: "TLS handshake with a client failed" in Path(stage.cluster.logs["extender"]).read_text(),
    )
    assert not stage.bound("ring")
    secured.secure_scheduler()
    stage.await_bound("ring", 3)

    successor = Authority(secured.directory / "successor", "theirs")
    secured.theirs.file.write_bytes(successor.file.read_bytes())
    successor.file = secured.theirs.file
    secured.theirs = successor
    secured.secure_scheduler()
    stage.create_group("wheel", 2, RACK)
    stage.create_pods(names("wheel", 2), "wheel")
    stage.await_bound("wheel", 2)
    assert "certificates have changed" in Path(stage.cluster.logs["extender"]).read_text()
