"""The core: decides which gang is planned when, binds what is planned, and answers kube-scheduler.

`extender.wiring` builds its objects and runs its loops. kube-scheduler's calls enter by `service.ExtenderService`,
changes of the cluster by `scheduling.group_scheduler.GroupScheduler`. Features, i.e. optional parts such as preemption
(`extender.features`), take part by the base class `feature.Feature`.
"""
