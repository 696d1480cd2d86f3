"""The list of all rules that limit on which nodes a pod fits (`RULES`), such as those of volumes or pod affinity.

The Store and the planner create the rules from this list. A new rule is one package in `serried.rules`, and one line
here.
"""

from serried.cluster.rule import RuleType
from serried.rules.devices.cluster import DeviceClaims
from serried.rules.extended.cluster import ExtendedResources
from serried.rules.features.cluster import DeclaredFeatures
from serried.rules.interpod.cluster import MatchingPods
from serried.rules.interpod.plan import INTERPOD
from serried.rules.volumes.cluster import Volumes
from serried.rules.volumes.plan import VOLUMES

RULES = (
    RuleType(ExtendedResources),
    RuleType(DeclaredFeatures),
    RuleType(Volumes, VOLUMES),
    RuleType(DeviceClaims),
    RuleType(MatchingPods, INTERPOD),
)
"""The rules, in the order in which the Store applies them: each gets pods and nodes as changed by those before it."""
