"""A release is published into a registry in memory. After a failure at any step a second try ends as well."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench import tools
from bench.cluster.binaries import find_helm
from bench.cluster.release import HELM_VERSIONS
from bench.publish import ReleaseError, pack_chart
from bench.push import VARIANTS, Publication, run_command, write_small_image
from serried import __version__

pytestmark = pytest.mark.tools

MINOR = __version__.rpartition(".")[0]


class Broken(Exception):
    """The machine has died after a command."""


@dataclass
class World:
    """A registry in memory, and what stands for GitHub and the signer. It breaks after so many commands, if told."""

    breaks_after: int = -1
    commands: int = 0
    charts: int = 0
    signed: set[str] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    draft: bool | None = None
    latest: str = ""

    def run(self, command: Sequence[str]) -> str:
        answers = {"cosign": self.sign, "gh": self.publish}
        said = answers.get(command[0], run_command)(command)
        self.commands += 1
        self.charts += any(word.startswith("oci://") for word in command)
        if self.commands == self.breaks_after:
            raise Broken
        return said

    def sign(self, command: Sequence[str]) -> str:
        if command[1] == "sign":
            self.signed.add(command[-1])
        else:
            Path(command[command.index("--bundle") + 1]).write_text("signed")
        return ""

    def publish(self, command: Sequence[str]) -> str:
        """As `gh release` does."""
        verb, tag, *words = command[2:]
        assert tag == f"v{__version__}"
        if (verb == "create") == (self.draft is not None):
            raise subprocess.CalledProcessError(1, command, stderr="release not found, or it exists")
        if verb == "create":
            self.draft = "--draft" in words
        elif verb == "upload":
            files = [Path(word) for word in words if not word.startswith("--")]
            assert "--clobber" in words or not self.files.keys() & {file.name for file in files}
            self.files |= {file.name: file.read_bytes() for file in files}
        elif verb == "edit":
            self.draft = "--draft=false" not in words
            (self.latest,) = [word for word in words if word.startswith("--latest=")]
        return ""


@dataclass(frozen=True)
class Stage:
    """A registry in which releases are published, each under an owner of its own."""

    address: str
    files: Path
    crane: str
    helm: str

    def publication(self, owner: str, world: World, images: Path, revision: str = "abc") -> Publication:
        """A release whose images are made anew: no build gives the same bytes as the one before."""
        for lock in VARIANTS.values():
            write_small_image(images / lock, revision, f"{lock} {images}".encode())
        registry = f"{self.address}/{owner}"
        return Publication(registry, revision, self.files, images, world.run, self.crane, (self.helm, "--plain-http"))

    def ask(self, *words: str) -> str:
        return run_command([self.crane, *words]).strip()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    helm = find_helm(HELM_VERSIONS[0])
    if helm is None:
        pytest.skip("Helm is not built: make helm")
    files = tmp_path_factory.mktemp("release")
    pack_chart(files, __version__)
    (files / "notes.md").write_text("### Added\n- All.\n")
    (files / "SHA256SUMS").write_text("0  nothing\n")
    try:
        crane = str(tools.locate("crane"))
    except tools.ToolError as error:
        pytest.skip(str(error))
    with tools.registry() as address:
        yield Stage(address, files, crane, str(helm))


def publish(publication: Publication) -> None:
    publication.push_images()
    publication.push_rest()


def check(stage: Stage, publication: Publication, world: World) -> None:
    """All is there: each tag of the image names the same one, and whatever a tag names is signed."""
    names = set()
    for variant in VARIANTS:
        tags = {f"{tag}{variant}" for tag in (__version__, MINOR, "latest")}
        assert tags <= set(stage.ask("ls", publication.image).split())
        (digest,) = {stage.ask("digest", f"{publication.image}:{tag}") for tag in tags}
        platforms = json.loads(stage.ask("manifest", f"{publication.image}@{digest}"))["manifests"]
        assert [each["platform"]["architecture"] for each in platforms] == ["amd64", "arm64"]
        names.add(f"{publication.image}@{digest}")
    assert len(names) == len(VARIANTS)
    assert stage.ask("ls", publication.chart).split() == [__version__]
    names.add(f"{publication.chart}@{stage.ask('digest', f'{publication.chart}:{__version__}')}")
    assert names <= world.signed
    assert world.files.keys() == {f"serried-{__version__}.tgz", "SHA256SUMS", "SHA256SUMS.sigstore.json"}
    assert (world.draft, world.latest) == (False, "--latest=true")
    assert world.charts == 1


def test_a_second_try_after_a_failure_at_any_step_ends_well(stage: Stage, tmp_path: Path) -> None:
    whole = World()
    first = stage.publication("whole", whole, tmp_path / "whole")
    publish(first)
    check(stage, first, whole)
    for place in range(1, whole.commands):
        owner, world = f"after-{place}", World(breaks_after=place)
        with pytest.raises(Broken):
            publish(stage.publication(owner, world, tmp_path / owner))
        released = {
            variant: find(stage, f"{stage.address}/{owner}/serried:{__version__}{variant}") for variant in VARIANTS
        }
        again = stage.publication(owner, world, tmp_path / f"{owner}-again")
        publish(again)
        check(stage, again, world)
        for variant, digest in released.items():  # what has had its version's tag is that version for ever
            assert digest in {None, stage.ask("digest", f"{again.image}:{__version__}{variant}")}


def find(stage: Stage, name: str) -> str | None:
    try:
        return stage.ask("digest", name)
    except subprocess.CalledProcessError:
        return None


def test_what_is_released_is_not_replaced_by_another_commit(stage: Stage, tmp_path: Path) -> None:
    publish(stage.publication("kept", World(), tmp_path / "first"))
    other = stage.publication("kept", World(), tmp_path / "other", revision="def")
    with pytest.raises(ReleaseError, match="is of commit abc, not def: what is released is never replaced"):
        other.push_images()


def test_a_chart_with_other_contents_is_not_put_in_the_place_of_a_released_one(stage: Stage, tmp_path: Path) -> None:
    publication = stage.publication("chart", World(), tmp_path / "images")
    publish(publication)
    changed = tmp_path / "files"
    changed.mkdir()
    (changed / f"serried-{__version__}.tgz").write_bytes(b"another one")
    other = Publication(
        publication.registry, "abc", changed, publication.images, World().run, stage.crane, (stage.helm,)
    )
    with pytest.raises(ReleaseError, match="is there with other contents"):
        other.push_rest()


def test_a_registry_that_does_not_answer_is_no_empty_one(stage: Stage, tmp_path: Path) -> None:
    publication = stage.publication("lost", World(), tmp_path)
    lost = Publication("localhost:1/lost", "abc", stage.files, tmp_path, publication.run, stage.crane, publication.helm)
    with pytest.raises(subprocess.CalledProcessError):
        lost.push_images()


def test_the_same_files_give_the_same_chart(stage: Stage, tmp_path: Path) -> None:
    name = f"serried-{__version__}.tgz"
    assert pack_chart(tmp_path, __version__).read_bytes() == (stage.files / name).read_bytes()
