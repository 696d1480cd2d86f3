"""Steady by default: the same examples every time, and no deadline that a busy machine could miss.

`make fuzz` takes other examples each time, and more of them.
"""

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("wide", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("steady")
