"""The oracle of the golden cases: the operators in plain numpy, from the specification alone."""
