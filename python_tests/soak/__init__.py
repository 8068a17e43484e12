"""The soak test: many decode steps on threads and sessions, while memory, threads and files are counted.

    PYTHONPATH=python_tests:examples:golden python -m soak --steps 1000000

`plan` says who runs, `lane` is a thread's decode loop, `churn` makes and destroys sessions and objects, `refusals`
calls what must be refused. `resources` measures the process and `report` holds it against the bounds.
"""
