"""Selectors of devices: upstream's own forms (cel/compile_test.go of dynamic-resource-allocation 0.37) and users'.

Each with what it says of GPU: "yes", "no", "fails" for that device, "wrong" where it is no selector, or "beyond" where
only kube-scheduler knows.
"""

from typing import Any

from serried.api.cel import Broken, Unsupported, compile_selector
from serried.api.device import Device, decode_resource_slice
from tests.support.builders import require_valid

DRIVER = "gpu.example.com"

GPU: dict[str, Any] = {
    "name": "gpu-0",
    "attributes": {
        "name": {"string": "fish"},
        "on": {"bool": True},
        "off": {"bool": False},
        "index": {"int": 1},
        "driverVersion": {"version": "1.2.3-rc.1"},
        "other.example.com/rack": {"string": "r7"},
        "services": {"string": "some_example_value"},
        "ids": {"ints": [1, 2]},
        "words": {"strings": ["fish", "bird"]},
    },
    "capacity": {"memory": {"value": "80Gi"}, "other.example.com/links": {"value": "18"}},
}

OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("nic.example.com", {"name": "nic-0", "attributes": {"name": {"string": "eth"}}}),
    ("nic.example.com", {"name": "nic-1"}),
    (DRIVER, {"name": "gpu-1", "attributes": {"driverVersion": {"version": "0.10.0+build"}, "index": {"int": -7}},
              "capacity": {"memory": {"value": "81920Mi"}}}),
    (DRIVER, {"name": "gpu-2", "attributes": {"on": {"bool": False}, "name": {"int": 5}, "index": {"string": "x"}},
              "capacity": {"memory": {"value": "0.5"}}, "allowMultipleAllocations": True}),
]  # fmt: skip
"""Further devices, each with its driver, for which upstream evaluates the selectors, too."""

A = f'device.attributes["{DRIVER}"]'
C = f'device.capacity["{DRIVER}"]'

SELECTORS: list[tuple[str, str]] = [
    ("true", "yes"),
    ("false", "no"),
    ("?!", "wrong"),
    ("1", "wrong"),
    ('"a"', "wrong"),
    (f'device.driver == "{DRIVER}"', "yes"),
    ("device.driver == 'nic.example.com'", "no"),
    ('device.driver.startsWith("gpu.") && device.driver.endsWith(".com")', "yes"),
    ('device.attributes["no-such-domain"].noSuchAttr == 1', "fails"),
    ('device.attributes["no-such-domain"]["noSuchAttr"] == 1', "fails"),
    ('"no-such-domain" in device.attributes', "no"),
    (f'"{DRIVER}" in device.attributes', "yes"),
    ('"other.example.com" in device.attributes && "other.example.com" in device.capacity', "yes"),
    ('"x" in device.attributes["no-such-domain"]', "no"),
    (f'"on" in {A} && {A}.on', "yes"),
    (f"{A}.on", "yes"),
    (f'{A}["on"]', "yes"),
    (f"{A}.off", "no"),
    (f"!{A}.off", "yes"),
    (f"has({A}.on)", "yes"),
    (f"has({A}.nothing)", "no"),
    (f"{A}.nothing", "fails"),
    (f"{A}.nothing == 1 || true", "yes"),
    (f"false && {A}.nothing == 1", "no"),
    (f"{A}.nothing == 1 && true", "fails"),
    (f"cel.bind(gpu, {A}, gpu.on && gpu.index == 1)", "yes"),
    ('cel.bind(all, device.attributes, all["other.example.com"].rack == "r7")', "yes"),
    ('device.attributes["other.example.com"].rack == "r7"', "yes"),
    (f"{A}.index > 0", "yes"),
    (f"{A}.index >= 1 && {A}.index < 2 && {A}.index != 3", "yes"),
    (f"{A}.index == 1.0", "yes"),
    (f"{A}.index in [1, 2, 3]", "yes"),
    (f"{A}.index + 1 == 2", "yes"),
    (f"{A}.index % 2 == 1 ? {A}.on : {A}.off", "yes"),
    (f'{A}.index == "1"', "no"),
    (f"{A}.name > 1", "fails"),
    (f'{A}.name == "fish"', "yes"),
    (f'{A}.name in ["fish", "bird"]', "yes"),
    (f'{A}.name.lowerAscii() == "fish"', "yes"),
    (f'{A}.name.upperAscii().contains("IS")', "yes"),
    (f'{A}.name.matches("^f[a-z]+$")', "yes"),
    (f'{A}.name.matches("x")', "no"),
    (f'{A}.name.replace("f", "d") == "dish"', "yes"),
    (f'{A}.name.substring(1) == "ish" && {A}.name.indexOf("s") == 2 && {A}.name.charAt(0) == "f"', "yes"),
    (f'{A}.services.split("example").size() >= 2', "yes"),
    (f"size({A}.name) == 4", "yes"),
    (f'string({A}.index) == "1"', "yes"),
    (f'"%s-%d".format([{A}.name, {A}.index]) == "fish-1"', "yes"),
    (f"type({A}.index) == int", "yes"),
    (f'{A}.driverVersion.isGreaterThan(semver("1.2.2"))', "yes"),
    (f'{A}.driverVersion.isGreaterThan(semver("1.2.3"))', "no"),
    (f'{A}.driverVersion.isLessThan(semver("1.2.3-rc.10"))', "yes"),
    (f'{A}.driverVersion.compareTo(semver("1.2.3-rc.1")) == 0', "yes"),
    (f'{A}.driverVersion == semver("1.2.3-rc.1")', "yes"),
    (f'{A}.driverVersion.isGreaterThan(semver("v1.2", true)) && isSemver("v1.0.0", true)', "yes"),
    (f"{A}.driverVersion.major() == 1 && {A}.driverVersion.minor() == 2 && {A}.driverVersion.patch() == 3", "yes"),
    ('isSemver("1.0") || isSemver("01.0.0") || isSemver("v1.0.0")', "no"),
    ('semver("1.0.0").isLessThan(semver("1.0.1")) && semver("1.0.0-a.b").isLessThan(semver("1.0.0-a.b.c"))', "yes"),
    ('semver("1.0.0-2").isLessThan(semver("1.0.0-10")) && semver("1.0.0-10").isLessThan(semver("1.0.0-a"))', "yes"),
    ('semver("x") == semver("1.0.0")', "fails"),
    (f'{A}.name.isGreaterThan(semver("1.0.0"))', "fails"),
    (f'{C}.memory.isGreaterThan(quantity("40Gi"))', "yes"),
    (f'{C}.memory.compareTo(quantity("80Gi")) >= 0', "yes"),
    (f'{C}.memory.compareTo(quantity("81920Mi")) == 0', "yes"),
    (f'{C}.memory.isLessThan(quantity("80Gi"))', "no"),
    (f'{C}["memory"] == quantity("80Gi")', "yes"),
    (f'"memory" in {C} && {C}.memory.isGreaterThan(quantity("1Ki"))', "yes"),
    (f'!("other" in {C}) || {C}.other.isGreaterThan(quantity("1Ki"))', "yes"),
    (f'{C}.nothing.isGreaterThan(quantity("1"))', "fails"),
    (f'{A}.index.isGreaterThan(quantity("1"))', "fails"),
    ('isQuantity("1Gi") && !isQuantity("1Gb")', "yes"),
    ('quantity("0.1") == quantity("100m") && quantity("1e3").isLessThan(quantity("1Ki"))', "yes"),
    ('quantity("fish") == quantity("1")', "fails"),
    ("device.allowMultipleAllocations", "no"),
    ("device.allowMultipleAllocations == false", "yes"),
    (f'device.attributes.exists_one(x, x == "{DRIVER}")', "yes"),
    ('device.attributes.all(x, x.endsWith("example.com"))', "yes"),
    (f'{A}.exists_one(x, x == "services")', "yes"),
    (f'{C}.exists(x, x == "memory")', "yes"),
    ("size(device.attributes) == 2 && device.capacity.size() == 2", "yes"),
    (f"{A}.size() > 4", "yes"),
    (f"{A}.ids.size() == 2", "yes"),
    (f"1 in {A}.ids", "yes"),
    (f"3 in {A}.ids", "no"),
    (f"{A}.ids.exists(x, x > 1)", "yes"),
    (f'{A}.words.all(x, x != "")', "yes"),
    (f'{A}.words.exists(x, x.startsWith("b")) && {A}.words[0] == "fish"', "yes"),
    (f"{A}.words", "fails"),
    (f"{A}.name.exists(x, x > 0)", "fails"),
    ("[1, 2, 3].filter(x, x > 1).map(x, x * 2) == [4, 6]", "yes"),
    (f'{A}.words.includes("fish")', "beyond"),
    (f'{A}.?name.orValue("") == "fish"', "yes"),
    (f'{A}.?nothing.orValue("x") == "fish"', "no"),
    (f"{A}.?nothing.hasValue()", "no"),
    ('device.attributes[?"no-such-domain"].?nothing.orValue(1) == 1', "yes"),
    (f'{A}.?name == optional.of("fish")', "yes"),
    ("sets.contains([1, 2], [1])", "beyond"),
    (f'{A}.name.find("[a-z]+") == "fish"', "beyond"),
    ("device.attributes.all(domain, values, size(values) > 0)", "beyond"),
    ('cel.bind(it, device, it.driver != "")', "beyond"),
    ('quantity("1Gi").add(quantity("1Gi")) == quantity("2Gi")', "beyond"),
    ('ip("10.0.0.1").family() == 4', "beyond"),
    ('cel.bind(all, device.attributes, "x" in all["no-such-domain"])', "beyond"),
]  # fmt: skip


def decode(raw: dict[str, Any], driver: str = DRIVER) -> Device:
    """Decode a device of a ResourceSlice of this driver."""
    spec = {"driver": driver, "pool": {"name": "p"}, "devices": [raw]}
    return require_valid(decode_resource_slice({"metadata": {"name": "s"}, "spec": spec})).devices[0]


def evaluate(expression: str, device: Device, driver: str = DRIVER) -> str:
    """Return the result of a selector for a device, in the words of SELECTORS."""
    try:
        selector = compile_selector(expression)
    except Broken:
        return "wrong"
    except Unsupported:
        return "beyond"
    try:
        found = selector.matches(driver, device.attributes, device.capacity, shareable=device.shareable)
    except Broken:
        return "fails"
    except Unsupported:
        return "beyond"
    return "yes" if found else "no"
