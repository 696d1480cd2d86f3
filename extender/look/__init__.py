"""The pages under ``/debug``, snapshots of the planner's input and their replay, and what-if questions."""
