"""The one list of rules. A new rule is one folder beside this file, and one line here."""

from serried.cluster.rule import RuleType
from serried.rules.devices.cluster import DeviceClaims
from serried.rules.extended.cluster import Uncounted
from serried.rules.features.cluster import DeclaredFeatures
from serried.rules.neighbours.cluster import MatchingPods
from serried.rules.neighbours.plan import NEIGHBOURS
from serried.rules.volumes.cluster import Volumes
from serried.rules.volumes.plan import VOLUMES

RULES = (
    RuleType(Uncounted),
    RuleType(DeclaredFeatures),
    RuleType(Volumes, VOLUMES),
    RuleType(DeviceClaims),
    RuleType(MatchingPods, NEIGHBOURS),
)
"""In the order in which pods are asked about: each sees what those before it have made of a pod."""
