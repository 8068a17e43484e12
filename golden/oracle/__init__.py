"""The oracle of the golden cases: dynamic_batching.KeyValueCache in plain numpy, from the specification alone."""
