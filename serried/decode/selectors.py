"""Label selectors (meta/v1 LabelSelector), and which labels they mean."""

from collections.abc import Iterable

from serried.decode.fields import Raw, read_labels, read_map, read_objects, read_text, read_texts
from serried.model.selectors import Labels, Requirement


def read_label_selector(obj: Raw, name: str) -> tuple[Requirement, ...] | None:
    """The requirements of the selector at ``name``, in a fixed order; None without one.

    What no selector means depends on the field. An empty one has no requirement, so that it means everything.
    """
    if obj.get(name) is None:
        return None
    selector = read_map(obj, name)
    found = {Requirement(key, "In", (value,)) for key, value in read_labels(selector, "matchLabels").items()}
    for raw in read_objects(selector, "matchExpressions"):
        values = tuple(sorted(set(read_texts(raw, "values"))))
        found.add(Requirement(read_text(raw, "key"), read_text(raw, "operator"), values))
    return tuple(sorted(found, key=lambda each: (each.key, each.operator, each.values)))


def selects(requirements: Iterable[Requirement], labels: Labels) -> bool:
    """Whether labels meet all requirements of a selector; an unknown operator is met by nothing."""
    return all(_meets(labels.get(each.key), each) for each in requirements)


def _meets(value: str | None, requirement: Requirement) -> bool:
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
