"""The planner: pure functions that compute a `Plan` (a node for each member), or a `Verdict` why there is none.

The extender enters it by `tree.plan_group`; if a gang does not fit, also by `preemption.plan_victims` and
`forecast.find_forecast`. `explain` has the functions for messages to users.
"""
