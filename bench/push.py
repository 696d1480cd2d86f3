"""Publish a release to a registry and to GitHub. Each step can be repeated after a failure.

python -m bench.push build                 builds the images for all architectures in build/image, by docker buildx
python -m bench.push image REGISTRY        pushes these images by digest, signs them, and prints the digests
python -m bench.push rest REGISTRY         pushes their tags and the signed chart, and the files to GitHub
python -m bench.push dry                   runs the last two steps twice, with small images and a registry in memory;
                                           commands that sign or call GitHub are only printed

A published version is never replaced. A second try uses the published image if it is of the same commit, and the
published chart if it has the same contents; else it fails. Tags that move between versions are pushed last.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import tools
from bench.cluster.binaries import locate_helm
from bench.cluster.progress import stderr_report
from bench.cluster.release import HELM_VERSIONS
from bench.publish import RELEASE, REPOSITORY, ReleaseError
from serried import __version__

IMAGES = REPOSITORY / "build" / "image"
"""The folder of the built images: one OCI layout for each variant."""

VARIANTS: Mapping[str, str] = {"": "runtime", "-traces": "traces"}
"""The variants of the image: by suffix of the tag, the name of the lock file."""

PLATFORMS = ("linux/amd64", "linux/arm64")
_REVISION = "org.opencontainers.image.revision"
_ABSENT = re.compile("MANIFEST_UNKNOWN|NAME_UNKNOWN|404 Not Found")
"""Matches crane's error output if a name does not exist in the registry. After other errors it may exist."""

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns its standard output. Raises CalledProcessError, which has the error output."""


def run_command(command: Sequence[str]) -> str:
    """Run a command and return its standard output. Raise CalledProcessError, which has the error output."""
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout


def list_tags(version: str, published: Iterable[str]) -> list[str]:
    """Return the tags that move to a version: `MAJOR.MINOR` and `latest`, each unless a newer version has it.

    ``published`` are all tags of the image.
    """
    own = _parse(version)
    others = [_parse(tag) for tag in published if re.fullmatch(r"\d+\.\d+\.\d+", tag)]
    newest_of_minor = all(other <= own for other in others if other[:2] == own[:2])
    minor = [f"{own[0]}.{own[1]}"] if newest_of_minor else []
    return [*minor, "latest"] if all(other <= own for other in others) else minor


def _parse(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True, slots=True)
class Publication:
    """Publishes one release to one registry, by running crane, Helm, cosign and gh."""

    registry: str
    """Host and owner, such as ghcr.io/serried."""

    revision: str
    """The commit that is released."""

    files: Path
    """The folder with the files that `bench.publish` made."""

    images: Path
    """The folder with one OCI layout for each variant."""

    run: Run
    crane: str
    """The path of crane."""

    helm: Sequence[str]
    """The path of Helm, followed by options to append to each push."""

    version: str = __version__

    @property
    def image(self) -> str:
        """Name of the image in the registry, without a tag."""
        return f"{self.registry}/serried"

    @property
    def chart(self) -> str:
        """Name of the chart in the registry, without a tag."""
        return f"{self.registry}/charts/serried"

    def push_images(self) -> dict[str, str]:
        """Push each variant by digest, unless it is published, and sign it.

        Return the digests by suffix of the tag. Raise ReleaseError if the version's tag is of another commit.
        """
        digests = {}
        for variant in VARIANTS:
            digest = self._find_published(variant)
            if digest is None:
                digest = self._read_layout(variant)
                self.run([self.crane, "push", str(self._locate_layout(variant)), f"{self.image}@{digest}"])
            self._sign(f"{self.image}@{digest}")
            digests[variant] = digest
        return digests

    def push_rest(self) -> None:
        """Tag the images that `push_images` pushed, push the chart and make the release on GitHub.

        Raise ReleaseError if a tag or the chart is published with other contents.
        """
        digests = {each: self._find_published(each) or self._read_layout(each) for each in VARIANTS}
        for variant, digest in digests.items():
            self.run([self.crane, "tag", f"{self.image}@{digest}", f"{self.version}{variant}"])
        self._sign(f"{self.chart}@{self._push_chart()}")
        moving = list_tags(self.version, self.run([self.crane, "ls", self.image]).split())
        for variant, digest in digests.items():
            for tag in moving:
                self.run([self.crane, "tag", f"{self.image}@{digest}", f"{tag}{variant}"])
        self._release(newest="latest" in moving)

    def _locate_layout(self, variant: str) -> Path:
        return self.images / VARIANTS[variant]

    def _read_layout(self, variant: str) -> str:
        index = json.loads((self._locate_layout(variant) / "index.json").read_text())
        (descriptor,) = index["manifests"]
        return str(descriptor["digest"])

    def _find_published(self, variant: str) -> str | None:
        """Return the digest of the image with the version's tag, None if there is none.

        Raise ReleaseError if that image is of another commit.
        """
        name = f"{self.image}:{self.version}{variant}"
        digest = self._inspect("digest", name)
        if digest is None:
            return None
        config = json.loads(self.run([self.crane, "config", "--platform", PLATFORMS[0], name]))
        revision = (config["config"].get("Labels") or {}).get(_REVISION)
        if revision != self.revision:
            raise ReleaseError(f"{name} is of commit {revision}, not {self.revision}: {_NEVER_REPLACED}")
        return digest

    def _push_chart(self) -> str:
        """Push the chart unless it is published. Return its digest.

        Raise ReleaseError if a chart with other contents is published.
        """
        name, archive = f"{self.chart}:{self.version}", self.files / f"serried-{self.version}.tgz"
        manifest = self._inspect("manifest", name)
        if manifest is None:
            program, *options = self.helm
            self.run([program, "push", str(archive), f"oci://{self.registry}/charts", *options])
        elif not any(each["digest"] == _digest(archive) for each in json.loads(manifest)["layers"]):
            raise ReleaseError(f"{name} is there with other contents: {_NEVER_REPLACED}")
        return self.run([self.crane, "digest", name]).strip()

    def _inspect(self, subcommand: str, name: str) -> str | None:
        """Return the output of a subcommand of crane about a name in the registry; None if the name does not exist."""
        try:
            return self.run([self.crane, subcommand, name]).strip()
        except subprocess.CalledProcessError as error:
            if _ABSENT.search(error.stderr or ""):
                return None
            raise

    def _sign(self, name: str) -> None:
        self.run(["cosign", "sign", "--yes", name])

    def _release(self, *, newest: bool) -> None:
        """Make the release on GitHub. It is a draft until all files are uploaded."""
        tag, sums, notes = f"v{self.version}", self.files / "SHA256SUMS", str(self.files / "notes.md")
        self.run(["cosign", "sign-blob", "--yes", "--bundle", f"{sums}.sigstore.json", str(sums)])
        files = sorted(str(path) for path in self.files.iterdir() if path.name != "notes.md")
        try:
            self.run(["gh", "release", "view", tag])
        except subprocess.CalledProcessError:
            self.run(["gh", "release", "create", tag, "--verify-tag", "--draft", "--notes-file", notes])
        self.run(["gh", "release", "upload", tag, "--clobber", *files])
        title, latest = f"Serried {tag}", f"--latest={str(newest).lower()}"
        self.run(["gh", "release", "edit", tag, "--draft=false", latest, "--title", title, "--notes-file", notes])


_NEVER_REPLACED = "what is released is never replaced, so give the code another version (serried/__init__.py)"


def list_builds(revision: str, images: Path = IMAGES) -> list[list[str]]:
    """Return the commands that build each variant as an OCI layout, with provenance and bill of materials."""
    common = ["docker", "buildx", "build", f"--platform={','.join(PLATFORMS)}", "--provenance=mode=max", "--sbom=true"]
    given = [f"--build-arg=VERSION={__version__}", f"--build-arg=REVISION={revision}"]
    return [
        [*common, *given, f"--build-arg=LOCK={lock}", f"--output=type=oci,tar=false,dest={images / lock}", "."]
        for lock in VARIANTS.values()
    ]


def write_small_image(layout: Path, revision: str, content: bytes) -> None:
    """Write an OCI layout of an image for all platforms, which have one layer with this content (a .tar.gz)."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def add(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    def write(document: Mapping[str, Any]) -> bytes:
        return json.dumps(document).encode()

    layer = add(content, "layer.v1.tar+gzip")
    manifests = []
    for platform in PLATFORMS:
        system, _, architecture = platform.partition("/")
        labels = {_REVISION: revision}
        root = {"type": "layers", "diff_ids": [layer["digest"]]}
        config = {"os": system, "architecture": architecture, "config": {"Labels": labels}, "rootfs": root}
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": add(write(config), "config.v1+json"),
            "layers": [layer],
        }
        where = {"os": system, "architecture": architecture}
        manifests.append(add(write(manifest), "manifest.v1+json") | {"platform": where})
    kind = "application/vnd.oci.image.index.v1+json"
    index = {"schemaVersion": 2, "mediaType": kind, "manifests": manifests}
    outer = {"schemaVersion": 2, "mediaType": kind, "manifests": [add(write(index), "index.v1+json")]}
    (layout / "index.json").write_bytes(write(outer))
    (layout / "oci-layout").write_bytes(write({"imageLayoutVersion": "1.0.0"}))


def rehearse() -> None:
    """Publish twice to a registry in memory. Commands that need signing keys or GitHub are only printed."""
    with tempfile.TemporaryDirectory() as folder, tools.registry() as address:
        images, files = Path(folder), RELEASE
        content = (files / f"kubectl-serried-{__version__}.tar.gz").read_bytes()
        for lock in VARIANTS.values():
            write_small_image(images / lock, "rehearsal", content)
        helm = (str(locate_helm(HELM_VERSIONS[0], stderr_report())), "--plain-http")
        publication = Publication(
            f"{address}/serried", "rehearsal", files, images, _rehearse_command, str(tools.locate("crane")), helm
        )
        for _ in range(2):
            publication.push_images()
            publication.push_rest()
        for name in (publication.image, publication.chart):
            print(f"{name}: {', '.join(publication.run([publication.crane, 'ls', name]).split())}")


def _rehearse_command(command: Sequence[str]) -> str:
    if command[0] in {"cosign", "gh"}:
        print(f"not done: {' '.join(command)}".replace(f"{REPOSITORY}/", ""))
        if command[:3] == ["gh", "release", "view"]:  # gh fails if the release does not exist
            raise subprocess.CalledProcessError(1, command)
        return ""
    return run_command(command)


def build() -> None:
    """Build the images from the commit that is checked out."""
    for command in list_builds(_read_revision()):
        subprocess.run(command, check=True, cwd=REPOSITORY)


def publish_images(registry: str) -> None:
    """Push the images, and print their digests for the next steps of the workflow."""
    for variant, digest in _open_publication(registry).push_images().items():
        print(f"{VARIANTS[variant]}={digest}")


def publish_rest(registry: str) -> None:
    """Push tags and chart, and make the release on GitHub."""
    _open_publication(registry).push_rest()


def _open_publication(registry: str) -> Publication:
    crane, helm = str(tools.locate("crane")), str(locate_helm(HELM_VERSIONS[0], stderr_report()))
    return Publication(registry, _read_revision(), RELEASE, IMAGES, run_command, crane, (helm,))


def _read_revision() -> str:
    return run_command(["git", "rev-parse", "HEAD"]).strip()


def parse(arguments: Sequence[str] | None = None) -> Callable[[], None]:
    """Parse the command line. Return the step to run, as a function without arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("build").set_defaults(step=build)
    commands.add_parser("dry").set_defaults(step=rehearse)
    for name, push in {"image": publish_images, "rest": publish_rest}.items():
        command = commands.add_parser(name)
        command.add_argument("registry")
        command.set_defaults(step=push)
    options = parser.parse_args(arguments)
    step: Callable[..., None] = options.step
    return partial(step, options.registry) if "registry" in options else step


def main() -> int:
    """Run the step that the command line names. Return 1 if it fails, else 0."""
    step = parse()
    try:
        step()
    except (ReleaseError, tools.ToolError, OSError, subprocess.CalledProcessError) as error:
        print(error, getattr(error, "stderr", None) or "", file=sys.stderr)
        return 1
    return 0


def _digest(file: Path) -> str:
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


if __name__ == "__main__":
    sys.exit(main())
