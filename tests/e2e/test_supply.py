"""`make sbom` tells what the image is made of."""

import json
import re
import subprocess

import pytest

from bench.cluster.installation import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_the_bill_of_materials_names_all_that_is_locked_and_nothing_else() -> None:
    subprocess.run(["make", "sbom"], cwd=REPOSITORY, check=True, capture_output=True)
    bill = json.loads((REPOSITORY / "build/sbom.cdx.json").read_text())
    lock = (REPOSITORY / "locks/runtime.txt").read_text()
    locked = set(re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE))
    assert {(each["name"], each["version"]) for each in bill["components"]} == locked
    assert all(each["purl"].startswith("pkg:pypi/") for each in bill["components"])
