"""The two names that JetStream imports; its tests make their own vocabulary."""


class Vocabulary:
    """A base class without behaviour."""


class SentencePieceVocabulary(Vocabulary):
    """Never made: our engine builds its own tokenizer."""
