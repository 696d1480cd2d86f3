"""The planner: pure functions that compute a `Plan` (a node for each member), or a `Verdict` why there is none."""
