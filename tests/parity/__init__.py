"""Our numbers against those of transformers, through small stored files."""
