"""The checks of network and secrets: no password and no token is shown."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from lib.configuration.tables import find_files
from lib.doctor.report import Finding, bash, ok, problem, warning
from lib.script.execute import read_output
from lib.script.records import content_of
from lib.script.worker import in_parallel

_PORTS = {"https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}
_UNTRUSTED = (60, 77)  # exit codes of curl


def find_certificates() -> Iterator[Finding]:
    """Check the files that the environment names.

    If one is missing, each download fails with an error about something else.
    """
    variables = bash('printf "%s\\n" "${longship_certificates[@]}"').text.split()
    named = {each: os.environ[each] for each in variables if os.environ.get(each)}
    faults = {variable: _fault_of_certificates(Path(path)) for variable, path in named.items()}
    for variable in filter(faults.get, named):
        text = f"{variable} is set to {named[variable]}, which {faults[variable]}"
        fix = f"unset {variable}, or set it to the certificate bundle of your site"
        yield problem("certificates", text, fix)
    if not any(faults.values()):
        text = f"named by {', '.join(named)}" if named else "those of the system"
        yield ok("certificates", text)


def _fault_of_certificates(path: Path) -> str:
    if not path.exists():
        return "does not exist"
    if not os.access(path, os.R_OK):
        return "cannot be read"
    has_any = path.is_dir() or re.search(b"BEGIN.* CERTIFICATE", content_of(path))
    return "" if has_any else "contains no certificate"


def find_proxies() -> Iterator[Finding]:
    """Report the configured proxies, and check that they accept connections."""
    shown: list[str] = []
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        other = name.upper()
        lower, upper = os.environ.get(name, ""), os.environ.get(other, "")
        if lower and upper and lower != upper:
            text = f"{name} and {other} differ: some programs read the first, others the second"
            yield warning("proxy", text, f'export {other}="${name}"')
        address = lower or upper
        if not address or without_login(address) in shown:
            continue
        shown.append(without_login(address))
        if not _accepts_connection(address):
            fix = f"correct the value, or run: unset {name} {other}"
            yield problem("proxy", f"no response from {shown[-1]}, set in {name}", fix)
            return
    yield ok("proxy", " ".join(shown) or "none set")


def without_login(url: str) -> str:
    """Return a URL without user and password, whatever characters these contain."""
    begin, at, rest = url.rpartition("@")
    scheme, mark, _ = begin.partition("://")
    return f"{scheme + mark if mark else ''}***@{rest}" if at else url


def _accepts_connection(url: str) -> bool:
    address = urlsplit(f"//{url.rpartition('://')[2].rpartition('@')[2]}")
    with suppress(OSError, ValueError):
        port = address.port or _PORTS.get(url.partition("://")[0], 80)
        socket.create_connection((address.hostname or "", port), timeout=5).close()
        return True
    return False


def find_servers(offline: Path | None, servers: Iterable[str]) -> Iterator[Finding]:
    """Check that the servers of packages and images respond.

    No network is needed if `offline`, the downloads from another machine, contains files.
    """
    urls = [*package_index(), *servers]
    reached = []
    for url, answer in zip(map(without_login, urls), in_parallel(_ask, urls, 8, "servers")):
        code, status = answer.result()
        if status[:1] in ("2", "3", "4"):  # a request to log in is a response too
            reached.append(url)
        elif code in _UNTRUSTED:
            fix = "export SSL_CERT_FILE=FILE, with the certificate bundle of your site or proxy"
            text = f"the certificate of {url} is not trusted on this machine"
            yield problem("network", text, fix)
        elif os.environ.get("SLURM_JOB_ID"):
            yield ok("network", f"{url} is not reachable (normal in a job)")
        elif offline and find_files(offline, "*/*"):
            yield ok("network", f"{url} is not reachable; the offline files are in {offline}")
        else:
            fix = "behind a proxy: export https_proxy=...; offline: run python3 bundle.py pack DIR "
            fix += "on a machine with network access"
            yield warning("network", f"{url} is not reachable", fix)
    if reached:
        yield ok("network", f"answers: {' '.join(reached)}")


def package_index() -> list[str]:
    """Return the URL of pip's index; none if pip is told to use none."""
    environ, home = os.environ, Path(os.environ.get("HOME", "/"))
    if environ.get("PIP_NO_INDEX"):
        return []
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip/pip.conf")
    named = [Path(environ[each]) for each in ("PIP_CONFIG_FILE",) if environ.get(each)]
    found = [environ.get("PIP_INDEX_URL", "")]
    for file in (*named, user, home / ".pip/pip.conf", Path("/etc/pip.conf")):
        text = content_of(file).decode(errors="surrogateescape")
        found += re.findall(r"^ *index[-_]url *[=:] *(.*)", text, re.MULTILINE)[-1:]
    return [next(filter(None, found), "https://pypi.org/simple/")]


def _ask(url: str) -> tuple[int, str]:
    """Return curl's exit code and the HTTP status of a server.

    The URL can contain a password, so it is not an argument, which other users can see.
    """
    if shutil.which("curl"):
        quoted = url.replace("\\", "\\\\").replace('"', '\\"')
        command = (
            "curl --silent --output /dev/null --max-time 8 --write-out %{http_code} --config -"
        )
        status, code = read_output(command.split(), 15, given=f'url = "{quoted}"\n')
        return code, status
    try:
        with urllib.request.urlopen(re.sub("://.*@", "://", url), timeout=8) as answer:
            return 0, str(answer.status)
    except urllib.error.HTTPError as error:
        return 0, str(error.code)
    except (OSError, ValueError, http.client.HTTPException) as error:
        untrusted = isinstance(getattr(error, "reason", None), ssl.SSLError)
        return _UNTRUSTED[0] if untrusted else 7, ""


def find_tokens(files: Iterable[str]) -> Iterator[Finding]:
    """Check that only their owner can read the files with tokens."""
    existing = [each for each in dict.fromkeys(files) if os.path.exists(each)]
    faults = [fault for each in existing for fault in _faults_of_token(each)]
    yield from faults
    if not faults:
        text = f"readable only by you; files: {len(existing)}" if existing else "no token files"
        yield ok("tokens", text)


def _faults_of_token(file: str) -> Iterator[Finding]:
    found, name = os.stat(file), quote(file)
    if not os.access(file, os.R_OK):
        yield problem("tokens", f"cannot read {file}", f"check its owner: ls -l {name}")
    elif found.st_mode & 0o77:
        mode = f"mode {found.st_mode & 0o7777:o}"
        yield problem("tokens", f"{file} can be read by others ({mode})", f"chmod 600 {name}")
    elif not found.st_size:
        fix = f"write the token into it, or run: rm {name}"
        yield warning("tokens", f"{file} is empty", fix)


def find_secrets(names: Iterable[str]) -> Iterator[Finding]:
    """Report which of the variables that are passed on by name are set."""
    named = [each for each in names if os.environ.get(each)]
    text = f"set, and passed on: {', '.join(named)}" if named else f"not set: {' '.join(names)}"
    yield ok("secrets", text)
