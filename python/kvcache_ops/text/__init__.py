"""From logits to text: sampling, grammars, and pieces of text as tokens come."""
