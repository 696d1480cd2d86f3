"""The read side of the extender: ``/debug`` and its page, snapshots and their replay, and what-if questions."""
