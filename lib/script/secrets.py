"""What tokens and keys look like: in files that are searched for them, and in texts that are shown.

A file with a `SECRET` stops a command, so a value after a name counts only if it has three digits.
`mask` hides more: all of these, and short values. tests/script/test_secrets.py has a list of both.
"""

from __future__ import annotations

import functools
import re

# how names of values end that only their owners may see, with - or nothing for _
_PASSWORDS = ("password", "passwd", "passphrase", "secret")
_KEYS = (
    *("token", "credential", "access_key", "account_key", "api_key", "auth_key", "private_key"),
    *("secret_key", "wandb_key"),
)


def _written(words: tuple[str, ...]) -> list[str]:
    """Return names as constants, variables, options, headers and JSON have them."""
    forms = [form for each in words for form in (each, each.capitalize(), each.upper())]
    return [re.sub("_[kK]", "[_-]?[kK]", each) for each in forms]


NAME = "|".join(_written((*_PASSWORDS, *_KEYS)))
_BEHIND = r"""s?[\\"']*([[:space:]]*[:=]+>?|[[:space:]])[[:space:]]*[\\"']*"""  # a name
_HOST = "@([^s{<$[:space:]]|s[^h]|sh[^a]|sha[^0-9])"  # no @sha256: of an image
_VALUE = "([A-Za-z_/+-]*[0-9]){3}[A-Za-z0-9_/+-]{8,}"
# What is before a secret, the secret, and what is after it: for grep -E, git log -G and Python,
# which is fast as each begins with a letter. Spaces and quotes end a password in a URL, brackets
# and $ begin a placeholder for one.
_FOUND = (
    ("", r"hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}", ""),
    (
        "",
        r"gl(pat|dt|rt|ptt)-[A-Za-z0-9_-]{20,}|nvapi-[A-Za-z0-9_-]{30,}|AIza[A-Za-z0-9_-]{35}",
        "",
    ),
    ("", r"A(KI|SI)A[0-9A-Z]{16}|wandb_v1_[A-Za-z0-9_]{30,}|xox[abeprs]-[A-Za-z0-9-]{20,}", ""),
    ("", f"sk-(ant|or|proj|svcacct)-{_VALUE}|sk-[A-Za-z0-9]{{20}}T3BlbkFJ[A-Za-z0-9]+", ""),
    ("", r"eyJ[A-Za-z0-9_-]{10,99}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+", ""),
    ("", "BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY", ""),
    *(
        (f"{each}.{{0,80}}[^0-9a-f]", "[0-9a-f]{40}", "([^0-9a-f]|$)")
        for each in ("WANDB_API_KEY", "andb(_key|_api_key|[.]ai| login)")
    ),
    ("://", r"""[^]/@:"<>{}$*[:space:]'[]*:[^]/@:"<>{}$*[:space:]'[]+""", _HOST),
    ("https?://", r"""[^]/:@"<>{}$*[:space:]'[]{20,}""", "@"),
    *((f"{each}[[:space:]]+", _VALUE, "") for each in ("Bearer", "bearer", "Basic")),
    *((f"{each}{_BEHIND}", _VALUE, "") for each in _written((*_PASSWORDS, *_KEYS))),
)
SECRET = "|".join("".join(each) for each in _FOUND)

# Only for texts, where the first group stays. User and password of a URL can contain @ and /.
LOGIN = r"(https?://|://(?=[^/\s@]*:))(?:[^/\s]+|[^/\s:@]+:(?!\d+/)\S{1,200})(?=@(?!sha256:))"
# no number, placeholder, list, call or constant
_PLAIN = r"[*<${[(]|[\w.]+\(|[\d.,_eE+-]+[kMBGT%]?(?![^]\s\"',;)}])|(?i:none|null|true|false)\b"
_TEXT = rf"(?!{_PLAIN})" + r"""(?:(?<=")[^"\n]+|(?<=')[^'\n]+|[^\s"'&,;]+)"""
_PASSWORD, _KEY = "|".join(_written(_PASSWORDS)), "|".join(_written(_KEYS))
_MASKED = (
    r"(BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY)(?s:.*?)(?:END [A-Z0-9 ]{0,40}PRIVATE KEY|\Z)",
    LOGIN,
    rf"""((?:{_PASSWORD})s?[\\"']*\s*[:=]+>?\s*[\\"']*){_TEXT}""",
    rf"""((?:{_KEY})s?[\\"']*\s*(?:=+>?\s*[\\"']*|:\s*[\\"']+))(?=\S{{8}}){_TEXT}""",
    rf"((?:{_KEY})s?:\s*)(?=\S{{8}})(?=\S{{0,99}}\d|\S{{20}}){_TEXT}",
    rf"""(--[\w-]{{0,24}}(?:{NAME})s?["']?(?:=|\s+)["']?)(?!-)(?=\S{{3}}){_TEXT}""",
    rf"""((?i:authorization)[\\"']*\s*[:=]\s*[\\"']*(?:\w+\s+)?){_TEXT}""",
    r"((?i:\bbearer)\s+)(?=\S{0,99}\d)[\w.~+/=-]{12,}",
    r"(wandb login\s+(?:--\S+\s+){0,3})(?=\S{0,99}\d)[^\s-]\S{7,}",
    r"(\b(?:login|machine)\s+\S+\s+password\s+)\S+",
    r"(\blogin\b.{0,200}?\s(?:-p|--password)\s+)\S+",
    r"""((?:^|\s)(?:-u|--user)[ =]["']?[^\s:"']+:)(?!\d+\b)[^\s"']+""",
)


def has_secret(content: bytes) -> bool:
    """Tell whether the content of a file looks as if it contained a token or key."""
    return re.search(_in_python(SECRET).encode(), content, re.MULTILINE) is not None


def mask(text: str) -> str:
    """Return a text with *** for each token, key and password."""
    for each in _masks():
        text = each.sub(r"\1***", text)
    return text


@functools.cache  # a launch shows no text
def _masks() -> list[re.Pattern[str]]:
    found = [f"({before})(?:{value})(?={after})" for before, value, after in _FOUND if before]
    found += [f"()(?:{value})" for before, value, _ in _FOUND if not before]
    return [re.compile(_in_python(each), re.MULTILINE) for each in (*_MASKED, *found)]


def _in_python(pattern: str) -> str:
    return pattern.replace("[:space:]", r"\s")
