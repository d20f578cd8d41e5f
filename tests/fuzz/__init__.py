"""What attnmix reads, cut, mangled and hostile: a clear error, and nothing run, fetched or written elsewhere.

The same inputs in every run; ATTNMIX_FUZZ=10 tries ten times as many. With -s it prints how many there were.
"""
