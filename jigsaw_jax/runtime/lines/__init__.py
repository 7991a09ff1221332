"""Connections between the processes of a run, and completions that travel on them."""
