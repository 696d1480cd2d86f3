"""What a gang may need beside a plan. Each feature is a module or a folder of its own that the core does not know."""
