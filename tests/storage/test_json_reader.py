"""Values of untrusted files have checked types, and errors name their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from bytewright.errors import FormatError, shorten
from bytewright.storage.json_reader import Json, read_lines
from rejection import rejects

FILE = Path("some.json")


def test_an_error_names_the_path_of_keys() -> None:
    root = Json({"a": {"b c": [1, {"d": None}]}}, FILE)
    element = list(root["a"]["b c"].elements())[1]
    assert element["d"].place == "a.'b c'[1].d"
    with rejects(FormatError, path=FILE, key="a.'b c'[1].e"):
        element["e"]


@pytest.mark.parametrize(
    ("method", "value", "sentence"),
    [
        ("as_object", [], "should be an object, but is an array"),
        ("as_array", {}, "should be an array, but is an object"),
        ("as_text", 5, "should be a string, but is 5"),
        ("as_text", "\ud800", r"should be Unicode text without lone surrogates, but is '\ud800'"),
        ("as_integer", True, "should be an integer, but is true"),
        ("as_integer", 1.0, "should be an integer, but is 1.0"),
        ("as_integer", None, "should be an integer, but is null"),
        ("as_integer", "1", "should be an integer, but is '1'"),
    ],
)
def test_a_value_of_the_wrong_type_is_rejected(method: str, value: object, sentence: str) -> None:
    with pytest.raises(FormatError) as caught:
        getattr(Json(value, FILE, "key"), method)()
    assert str(caught.value) == f"some.json: key {sentence}"


def test_a_flag_is_true_false_or_missing() -> None:
    assert Json(None, FILE).as_boolean(default=True)
    assert not Json(False, FILE).as_boolean(default=True)
    with rejects(FormatError, path=FILE, key="key", expected="true or false", found=1):
        Json(1, FILE, "key").as_boolean(default=True)


def test_an_unknown_key_is_rejected() -> None:
    with rejects(FormatError, path=FILE, key="b"):
        Json({"a": 1, "b": 2}, FILE).check_keys("a")


def test_only_lf_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes("a\x85b\u2028c\n\x0cd".encode())
    assert read_lines(path) == ["a\x85b\u2028c", "\x0cd"]
    path.write_bytes(b"")
    assert read_lines(path) == []
    for contents, place in [
        (b"a\r\n", "line 1"),
        (b"a\n\nb", "line 2"),
        (b"\xef\xbb\xbfa", "byte order mark"),
    ]:
        path.write_bytes(contents)
        with rejects(FormatError, path=path) as caught:
            read_lines(path)
        assert place in str(caught.value)


def test_a_shortened_value_is_short_and_on_one_line() -> None:
    for value in [
        "a\nb\u2028c\x85d",
        "x" * 10**6,
        b"x" * 10**6,
        [[["x" * 99] * 99] * 99] * 99,
        10**4000,
        {"k": "v" * 999},
    ]:
        assert "\n" not in shorten(value)
        assert len(shorten(value)) < 10_000
