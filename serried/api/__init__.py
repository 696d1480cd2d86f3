"""What the API server's objects are: value and decoding of one kind in one file.

Pure and total: an odd object becomes Malformed, never a crash.
"""
