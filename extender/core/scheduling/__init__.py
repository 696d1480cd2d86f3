"""Decides which group is planned when, and what becomes of its plan. Nothing here awaits or knows an API client."""
