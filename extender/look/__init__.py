"""The pages under ``/debug``, snapshots of the planner's input and their replay, and what-if questions.

`extender.process` adds `routes.debug_routes` (with the what-if questions and snapshots), `routes.process_routes` and
`page.live_routes` to the operations listener. ``serried replay`` uses the modules `snapshot` and `decide`.
"""
