"""From logits to text: sampling, grammars, drafts from the prompt, and pieces of text as tokens come."""
