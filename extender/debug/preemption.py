"""Who would have to go for a group, or went, as ``/debug/groups`` shows it."""

from extender.debug.view import View
from serried.model.victim import Cost, NoVictims, Preemption


class DamageView(View):
    """What the victims of one priority cost."""

    priority: int
    violations: int
    broken: int
    pods: int


class AlternativeView(View):
    """Another domain, and what it would cost."""

    domain: str
    cost: list[DamageView]


class PreemptionView(View):
    """The answer to a search for victims."""

    domain: str
    """Where the gang goes; without victims, the domain that is nearest to hold it."""

    victims: list[str]
    """Namespace and name of each pod, the highest priority first."""

    cost: list[DamageView]
    """The highest priority first."""

    nextBest: AlternativeView | None
    """The next best domain; None if there is none, or none was looked at."""

    domainsFitting: int
    """How many domains would hold the gang after some evictions."""

    domainsExamined: int
    """For how many of these victims were chosen, the most promising first."""

    blocker: str
    """What is in the way where nothing helps: protection, priority or room; "" with victims."""

    protections: list[str]
    """For protection: why pods may not be evicted."""

    protected: int
    """For protection: how many pods may not be evicted; 0 where a PodDisruptionBudget does not allow so many."""


def view_preemption(found: Preemption | NoVictims | None) -> PreemptionView | None:
    """None where nothing was looked for, or not found in time."""
    if found is None:
        return None
    if isinstance(found, NoVictims):
        return PreemptionView(
            domain=found.domain,
            victims=[],
            cost=[],
            nextBest=None,
            domainsFitting=0,
            domainsExamined=0,
            blocker=found.blocker.value,
            protections=list(found.protections),
            protected=found.protected,
        )
    other = found.runner_up
    return PreemptionView(
        domain=found.plan.domain,
        victims=[f"{pod.namespace}/{pod.name}" for unit in found.victims for pod in unit.pods],
        cost=_view_cost(found.cost),
        nextBest=None if other is None else AlternativeView(domain=other.domain, cost=_view_cost(other.cost)),
        domainsFitting=found.domains_fitting,
        domainsExamined=found.domains_examined,
        blocker="",
        protections=[],
        protected=0,
    )


def _view_cost(cost: Cost) -> list[DamageView]:
    return [DamageView(**damage._asdict()) for damage in cost.damages]
