"""The PodGroup templates that an owner's Workload should have, and the minCount in each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.diff.names import template_name
from serried.cluster.membership import find_template
from serried.model.group import BASIC, Job, Policy, Template, Workload
from serried.model.level import FALLBACK, ApiLevel
from serried.model.parent import WHOLE, Owner, Parent, Stage, gangs_of, stages_of
from serried.model.priority import PreemptionPolicy, PriorityClass, find_class, resolve_priority


def desired_templates(owner: Owner) -> tuple[Template, ...]:
    """A template for each gang of the owner; one for a Job."""
    if isinstance(owner, Job):
        return (job_template(owner, Policy(desired_count(owner))),)
    return tuple(_parent_template(owner, gang) for gang in gangs_of(owner))


def tracking_templates(job: Job) -> tuple[Template, ...]:
    """The template of a Job that is no gang."""
    return (job_template(job, BASIC),)


def job_template(job: Job, policy: Policy) -> Template:
    """The one template of a Job's Workload."""
    return Template(
        name=template_name(job),
        policy=policy,
        topology_key=job.topology_key,
        disruption=job.disruption if policy.is_gang else None,
        priority_class=job.priority_class,
        claims=job.claims,
    )


def _parent_template(parent: Parent, gang: Stage) -> Template:
    return Template(
        name=_name_template(parent, gang),
        policy=Policy(gang.size),
        topology_key=parent.topology_key,
        disruption=parent.disruption,
        priority_class=parent.priority_class,
    )


def desired_count(job: Job) -> int:
    """The minCount of a Job's gang; 0 for one that runs no pod now."""
    return min(job.min_count or job.at_once, job.at_once)


def desired_counts(owner: Owner, workload: Workload) -> dict[str, int]:
    """The minCount for each template of the owner's Workload; no entry for one that stays as it is.

    A Job whose parallelism is 0 keeps its minCount. A stage that shrinks to one pod, or none, waits for one.
    """
    if isinstance(owner, Job):
        count = desired_count(owner)
        return {workload.templates[0].name: count} if count else {}
    return {_name_template(owner, stage): max(1, stage.size) for stage in stages_of(owner)}


def counting_templates(owner: Owner, workload: Workload) -> list[Template]:
    """The templates of the Workload that are used for a stage of the owner; a Job is an owner with one stage."""
    names: Sequence[str] = [WHOLE] if isinstance(owner, Job) else [stage.name for stage in owner.stages]
    found = (find_template(workload, owner, name) for name in names)
    return list(dict.fromkeys(template for template in found if template is not None))


def resolve_class(template: Template, level: ApiLevel, classes: Mapping[str, PriorityClass]) -> Template:
    """The template with what its PodGroup has to say of its class.

    At the fallback level that is the priority, and no other: what a template says is written by whoever made the
    Workload, and no admission plugin compares it with the class there. In 1.37 it is ``preemptionPolicy``: admission
    refuses a PodGroup that leaves it out, and so has the default, where the class says Never (seen on 1.37.1). An API
    server without the gate PodGroupPreemptionPolicy drops the field.
    """
    if level == FALLBACK:
        return replace(template, priority=resolve_priority(template.priority_class, classes), preemption=None)
    if not level.has_preemption or template.preemption is not None:
        return template
    found = find_class(template.priority_class, classes)
    never = found is not None and found.preemption is PreemptionPolicy.NEVER
    return replace(template, preemption=PreemptionPolicy.NEVER) if never else template


def _name_template(parent: Parent, stage: Stage) -> str:
    return stage.name or template_name(parent)
