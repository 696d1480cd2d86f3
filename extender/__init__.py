"""The door of the scheduler: extender verbs, the life of a gang, debug."""
