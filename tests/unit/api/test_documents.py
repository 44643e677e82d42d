import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_operator.api.documents import MAX_BYTES, DocumentError, load

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: 'a' stands twice, first in line 1"),
        ("spec: {x: 1, x: 2}", "'x' stands twice"),
        (BOMB, "aliases expand to more than"),
        ("a: &a [*a]", "alias inside its own anchor"),
        ("[" * 100_000, "nesting depth"),
        ("{a: " * 70, "deep"),
        ("on: 1", "'on' is not text as a key"),
        ("a: .nan", "not a number"),
        ("a: " + "9" * 5000, "an integer of 5000 characters"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: [", "line"),
        ("\x00", "control characters"),
        (b"\xff\xfe", "not UTF-8 text: byte 0"),
        ("x" * (MAX_BYTES + 1), "larger than 8,388,608 bytes"),
    ],
)
def test_what_is_refused_says_where(text, phrase):
    with pytest.raises(DocumentError) as caught:
        load(text, "job.yaml")
    assert str(caught.value).startswith("job.yaml: ")
    assert phrase in str(caught.value)
    assert len(str(caught.value)) < 400


def test_several_documents_are_counted_and_empty_ones_left_out():
    found = load("---\na: 1\n---\n---\nb: 2020-01-01\n", "f")
    assert [(d.index, d.value) for d in found] == [(1, {"a": 1}), (3, {"b": "2020-01-01"})]
    assert load("", "f") == []


def test_anchors_may_be_used():
    assert load("a: &x {b: 1}\nc: *x", "f")[0].value == {"a": {"b": 1}, "c": {"b": 1}}


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_input_loads_or_is_refused(text):
    try:
        load(text, "f")
    except DocumentError as error:
        assert str(error).startswith("f: ")  # noqa: PT017 - both outcomes are right
