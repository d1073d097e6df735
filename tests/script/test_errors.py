"""The error that a user can mend: two lines, and the near miss first."""

from lib.script.errors import LongshipError, suggest


def test_error_holds_message_and_hint():
    error = LongshipError("what", "how")
    assert (str(error), error.hint) == ("what", "how")


def test_near_miss_comes_first():
    assert suggest("imge", ("binds", "image")) == 'did you mean "image"? valid values: binds, image'


def test_swapped_letters_are_meant_first():
    allowed = ["jwb", "jwc", "jrc", "jpb"]
    assert suggest("jbw", allowed).startswith('did you mean "jwb"?')


def test_what_is_allowed_is_named_where_nothing_is_similar():
    assert suggest("zzz", ["uv", "pip"]) == "valid values: uv, pip"
    assert suggest("zzz", []) == "valid values: none"
