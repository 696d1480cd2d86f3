"""Measurements of Serried, and generators of pages in docs. Each runs as `python -m bench.NAME`; none is shipped."""
