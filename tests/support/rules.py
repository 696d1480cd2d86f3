"""The rules of the product, as planner and tests take them."""

from serried.rules.all import RULES

PLAN_RULES = tuple(each.plan for each in RULES if each.plan is not None)
"""The rules that the planner asks."""
