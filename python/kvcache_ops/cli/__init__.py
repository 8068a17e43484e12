"""The command line, `python -m kvcache_ops`: doctor, generate, chat, perplexity, size, and the models they name."""
