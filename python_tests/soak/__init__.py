"""The soak test: many decode steps on threads and sessions, while memory, threads and files are counted.

    PYTHONPATH=python_tests:examples:golden python -m soak --steps 1000000

`run` says who runs, `lane` is a thread's decode loop on a `place`, `beside` makes and destroys sessions and objects and
calls what must be refused. `process` measures the process and holds it against the bounds.
"""
