"""The soak test: many decode steps on threads and sessions, while memory, threads and files are counted.

    PYTHONPATH=python_tests:examples:golden python -m soak --steps 1000000

`lane` is a thread's decode loop on a `place`, `process` is what is counted.
"""
