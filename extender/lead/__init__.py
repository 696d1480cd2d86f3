"""Who plans, whether the scheduler beside it may go on, and how members are held meanwhile."""
