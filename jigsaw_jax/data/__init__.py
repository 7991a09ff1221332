"""Problem sources, tokenizers and chat templates."""
