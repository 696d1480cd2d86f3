"""The planner: pure functions that compute a Plan, or a Verdict that says why there is none."""
