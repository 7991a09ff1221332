import pytest

from jigsaw_jax.reward.answer import extract_answer
from jigsaw_jax.reward.exact import exact
from jigsaw_jax.reward.expression import expression
from jigsaw_jax.reward.format import matches_format
from jigsaw_jax.reward.lowercase_share import lowercase_share
from jigsaw_jax.reward.math_verify import math_equal
from jigsaw_jax.reward.multiple_choice import choice, multiple_choice
from jigsaw_jax.reward.numeric import numeric, parse_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 7 \n", "7"),
        ("so <answer> 7 </answer> it is", "7"),
        ("<answer>1</answer> no <answer>2</answer>", "2"),
        ("<answer>x <answer>3</answer>", "3"),
        ("it is <answer>7", "it is <answer>7"),
        ("</answer>7<answer>", "</answer>7<answer>"),
        ("", ""),
    ],
)
def test_the_last_closed_tag_holds_the_answer(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("7", "7"),
        (" 7\n", "7"),
        ("+7", "7"),
        ("007", "7"),
        ("7.", "7"),
        ("7.00", "7"),
        ("14/2", "7"),
        ("7e0", "7"),
        ("0.7E1", "7"),
        ("-7", "-7"),
        ("\u22127", "-7"),
        ("-0", "0"),
        ("1,234,567.5", "1234567.5"),
        ("1234", "1,234"),
        (".5", "1/2"),
        ("-1 / 2", "-0.5"),
        ("1e5", "100000"),
        ("9" * 400, "9" * 400),
    ],
)
def test_equal_numbers_are_right_however_spelt(answer, reference):
    assert numeric(answer, reference) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " ",
        "8",
        "12 and 13",
        "7 apples",
        "7 7",
        "77",
        "$7",
        "7%",
        "--7",
        "- 7",
        "7-",
        "7,0",
        ",7",
        "7,",
        "0,007",
        "1_0",
        "0x7",
        "7/0",
        "7/1/1",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "7e99999",
        "7e0e0",
        "7e",
        ".",
        "\uff17",
        "\u0667",
        "\u2466",
        "7\x00",
        "7</s>",
        "<answer>7",
        "<|im_end|>7",
        "7<|im_end|>",
        "7 \u2047 ",
        "\ufffd7",
        "9**9**9**9",
        "1" * 401,
        "int('7')",
        "6.9999999999999999999999",
    ],
)
def test_anything_else_is_not_seven(answer):
    assert numeric(answer, "7") == 0.0


def test_thousands_separators_stand_where_they_belong():
    assert parse_number("12,345") == 12345
    assert parse_number("1,2345") is None
    assert parse_number("1234,567") is None
    assert parse_number("0.333") != parse_number("1/3")


def test_a_reference_without_its_kind_of_answer_is_an_error_and_no_zero():
    with pytest.raises(ValueError, match="must be a number"):
        numeric("7", "seven")
    with pytest.raises(ValueError, match="must be a letter"):
        multiple_choice("A", "Paris")


def test_exact_ignores_only_outer_space():
    assert exact(" Yes\n", "Yes") == 1.0
    assert exact("yes", "Yes") == 0.0
    assert exact("Y es", "Yes") == 0.0
    assert exact("", "Yes") == 0.0


NUMBERS = [25, 3, 3, 10]


@pytest.mark.parametrize(
    "answer",
    [
        "25*3 + 10/3*3",
        "3*25+(10/3)*3",
        "(25 * 3) - -10 / 3 * 3",
        "3\xd725 + 10\xf73\xd73",
        "25*3 \u2212 (3 \u2212 10/3*3 - 3)",
    ],
)
def test_an_expression_over_all_numbers_is_worked_out_exactly(answer):
    numbers = [25, 10] + [3] * answer.count("3")
    assert expression(answer, numbers=numbers, target=85) == 1.0
    assert expression(answer, numbers=[*numbers, 3], target=85) == 0.0


def test_an_expression_is_not_rounded():
    # In floats 1 / 49 * 49 is 0.9999999999999999.
    assert expression("1/49*49", numbers=[1, 49, 49], target=1) == 1.0
    assert 1 / 49 * 49 != 1


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "85",
        "25*3+10",
        "25*3+10+3-3+0",
        "25*3+10+3-3+3-3",
        "25*3+5+5",
        "25*3*3**10",
        "25//3*3*10",
        "25*3+10+3 = 88",
        "25*3+10+3,",
        "[25*3+10+3]",
        "25*3+10+(3",
        "25 3 3 10",
        "25(3)+10+3",
        "25*3+10.0+3",
        "25*3+0b1010+3",
        "25*3+1_0+3",
        "25*3+10+3#",
        "25*3+10+3 if 1 else 0",
        "25*3+10+len('abc')",
        "(lambda: 25*3+10+3)()",
        "__import__('os').system('touch pwned')+25*3+10+3",
        "9**9**9**9",
        "25/(3-3)+10",
        "(" * 100 + "25*3+10+3" + ")" * 100,
        "(" * 90 + "1" + ")" * 90,
        "-" * 190 + "1",
        "25*3+10+3" + " " * 300 + "+0",
        "\uff12\uff15*3+10+3",
        "nan",
    ],
)
def test_an_expression_of_anything_else_is_wrong(answer):
    assert expression(answer, numbers=NUMBERS, target=88) == 0.0


def test_the_same_expression_is_right_for_its_own_numbers():
    # The table above is wrong for its form, not for its value.
    assert expression("25*3+10+3", numbers=NUMBERS, target=88) == 1.0
    assert expression("25*3+10+3", numbers=NUMBERS, target=89) == 0.0
    assert expression("25*3+10+3", numbers=[25, 3, 10], target=88) == 0.0


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" (b) ", "B"),
        ("**B**", "B"),
        ("B.", "B"),
        ("\\boxed{B}", "B"),
        ("Option B", "B"),
        ("B) Paris", "B"),
        ("(B) A city", "B"),
        ("Answer: B", "B"),
        ("The answer is (b).", "B"),
        ("The answer is **B**", "B"),
        ("A. is wrong.\nThe answer is B because it is.", "B"),
        ("answer is A. No: the answer is B", "B"),
        ("", None),
        ("A or B", None),
        ("AB", None),
        ("Bob", None),
        ("The answer is A or B", None),
        ("The answer is a banana", None),
        ("A) Rome\nB) Paris", None),
        ("A, B, C, D", None),
        ("Z", None),
        ("I think it is Paris", None),
        ("\uff21", None),
    ],
)
def test_a_choice_is_one_letter_and_no_other(text, letter):
    assert choice(text) == letter


def test_a_choice_is_compared_with_the_reference_letter():
    assert multiple_choice("(b)", "B") == 1.0
    assert multiple_choice("B", "(b)") == 1.0
    assert multiple_choice("A", "B") == 0.0


def test_format_takes_the_whole_text():
    pattern = r"(?s).*<answer>.*</answer>\s*"
    assert matches_format("so\n<answer>1</answer>\n", pattern) == 1.0
    assert matches_format("<answer>1</answer> and more", pattern) == 0.0


def test_lowercase_share_counts_ascii_letters_among_all_characters():
    assert lowercase_share("abC1") == 0.5
    assert lowercase_share("\xe9\ufffdz\ufb01") == 0.25
    assert lowercase_share("") == 0.0


@pytest.mark.parametrize(
    ("answer", "reference", "value"),
    [
        ("70", "70", 1.0),
        ("\u221270", "-70", 1.0),
        ("$\\frac{1}{2}$", "0.5", 1.0),
        ("\\frac{1}{2}", "\\frac{2}{4}", 1.0),
        ("x + 1", "1 + x", 1.0),
        ("71", "70", 0.0),
        ("", "70", 0.0),
        ("banana", "70", 0.0),
    ],
)
def test_math_verify_compares_mathematics(answer, reference, value):
    assert math_equal(answer, reference) == value
