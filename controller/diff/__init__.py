"""The diff of one owner: the objects that exist go in, the changes that are needed come out. Pure."""
