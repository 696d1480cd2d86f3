"""Who calls, and may they: certificates of listeners, tokens, and what callers may ask."""
