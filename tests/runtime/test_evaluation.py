from jigsaw_jax import settings
from jigsaw_jax.data.tokenizer import open_tokenizer
from jigsaw_jax.records import FinishReason, Sample, SampleId, Segment
from jigsaw_jax.runtime.evaluation import completion_pieces, completion_text


def test_pieces_keep_spaces_and_join_to_the_text_and_its_stop():
    tokenizer = open_tokenizer(
        settings.Tokenizer(
            kind="sentencepiece", path="configs/assets/arithmetic.model", chat=False
        )
    )
    tokens = (*tokenizer.encode("1 + 2 = 3"), tokenizer.eos_id)
    sample = Sample(
        id=SampleId("p", 0, 0),
        attempt=0,
        segments=(
            Segment(
                tokens=tokens,
                is_sampled=True,
                logprobs=(0.0,) * len(tokens),
                versions=(0,) * len(tokens),
            ),
        ),
        finish_reason=FinishReason.STOP,
    )
    assert completion_pieces(tokenizer, sample) == [*"1 + 2 = 3", "</s>"]
    assert completion_text(tokenizer, sample) == "1 + 2 = 3"
