"""The planner: pure functions from values to a Plan or a Refusal."""
