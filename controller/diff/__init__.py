"""The diff of one owner: takes the objects that exist, and returns the changes that are needed. Pure functions."""
