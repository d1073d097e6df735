"""The lines of a submission, from what would be typed."""

from lib.jobs.hooks import hooks
from lib.jobs.options import split_typed
from lib.jobs.request import Asked
from lib.jobs.submit import request_of, submit_lines


def lines_for(env, job, *words, again="", options=None, **given):
    """Give the lines for a job, the words typed after it, and values of options by their names."""
    typed, arguments = split_typed(words)
    own = {name: given.pop(name) for name in Asked._fields if name in given}
    extras = {
        extra: {each.name: given.pop(each.name) for each in known if each.name in given}
        for extra, known in hooks("OPTIONS").items()
    }
    assert not given
    asked = Asked(options=options or {}, extras=extras, **own)
    return submit_lines(request_of(env, job, typed, arguments, asked, again))
