"""Decides which group is planned when, and what becomes of it. Never awaits, and knows no API client."""
