"""Install packages with uv or pip, from the sources that pip is configured with.

uv does not read pip.conf, so pip's directories, indexes and certificates are passed on to it, in
the environment, because the address of an index can contain a password.
"""

import argparse
import configparser
import glob
import http.client
import os
import re
import ssl
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

# https://docs.astral.sh/uv/reference/environment/ names the variables on the right.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
# variables that stay when a wheelhouse is the only source
NOT_SOURCES = {"PIP_CACHE_DIR", "UV_CACHE_DIR", "UV_LINK_MODE", "UV_NO_INSTALLER_METADATA"}
TORCH_INDEX = "https://download.pytorch.org/whl/"


def install(wheelhouse, directory, installer, uv, torch, *options):
    """Become the installer, with the sources and the PyTorch build that fit this machine.

    The directory `wheelhouse` is the only source, unless it is "". The options name repositories
    in `directory`. `torch` is a file, see `torch_build`. With ``--prefix`` the files are packed and
    then deleted, so they can be links to those of uv's cache.
    """
    configuration = begin(wheelhouse, directory)
    build = "" if wheelhouse else torch_build(torch, options, configuration)
    if installer == "uv":
        os.environ.update(uv_environment(configuration))
        if build:
            os.environ.setdefault("UV_TORCH_BACKEND", build)
        if "--prefix" in options and can_link(options[options.index("--prefix") + 1]):
            os.environ["UV_LINK_MODE"] = "hardlink"
        command = [uv, "pip", "install", "--python", sys.executable]
        os.execv(uv, [*command, *uv_options(configuration), *options])
    if build and not (build == "auto" and os.path.exists("/dev/nvidiactl")):
        options = ["--extra-index-url", TORCH_INDEX + build.replace("auto", "cpu"), *options]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
    os.execv(sys.executable, [*pip, *options])


def can_link(directory):
    """Return whether a file of uv's cache can have a second name in a directory."""
    cache = os.environ.get("UV_CACHE_DIR", "")
    try:
        os.makedirs(cache, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache) as file:
            link = os.path.join(directory, os.path.basename(file.name))
            os.link(file.name, link)
            os.unlink(link)
    except OSError:  # another file system, or another mount of the same one
        return False
    return True


def run_script(wheelhouse, directory, script):
    """Become a script of the user in `directory`, with the venv of this Python active."""
    os.environ.update(uv_environment(begin(wheelhouse, directory)))
    os.environ["VIRTUAL_ENV"] = sys.prefix
    os.environ["PATH"] = os.path.join(sys.prefix, "bin") + os.pathsep + os.environ["PATH"]
    command = [script] if os.access(script, os.X_OK) else ["bash", script]
    os.execvp(command[0], command)


def begin(wheelhouse, directory):
    """Return pip's configuration; a wheelhouse is the only source, also for every child process."""
    configuration = pip_configuration()
    if wheelhouse:
        for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
            if name not in NOT_SOURCES:
                del os.environ[name]
        url = directory_url(wheelhouse)
        os.environ.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=url, PIP_CONFIG_FILE=os.devnull)
        os.environ.update(UV_OFFLINE="1", UV_NO_CONFIG="1")
        configuration = {"no-index": "1", "find-links": url}
    if directory:
        os.chdir(directory)
    return configuration


def directory_url(directory):
    """Return the URL of a directory: pip splits a list of sources at spaces, uv at commas."""
    return "file://" + urllib.parse.quote(os.path.abspath(directory))


def pip_configuration():
    """Return pip's options by name, such as ``find-links``, from its files and variables."""
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files = [
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
        os.path.join(home, ".pip", "pip.conf"),
        os.path.join(config, "pip", "pip.conf"),
        os.environ.get("PIP_CONFIG_FILE", ""),
    ]
    parser = configparser.RawConfigParser()
    parser.read(file for file in files if file)
    found = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            found.update(parser.items(section))
    for variable, value in os.environ.items():
        if variable.startswith("PIP_") and value:
            found[variable[len("PIP_") :].lower().replace("_", "-")] = value
    return found


def uv_environment(configuration):
    """Return the same for uv, as variables that the caller has not set."""
    found = {
        **_own_configuration(),
        # pip takes the best version of all its indexes; uv by default stops at the first
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_SOURCES": "1",  # [tool.uv.sources] of a repository, which pip does not know
    }
    for option, variable in UV_VARIABLES.items():
        words = configuration.get(option, "").split()
        if option == "extra-index-url":  # uv stops at a missing directory
            words = [each for each in words if _path(each) == each or os.path.isdir(_path(each))]
        if words:
            found[variable] = ("," if option == "find-links" else " ").join(words)
    return {name: value for name, value in found.items() if name not in os.environ}


def _own_configuration():
    """Return which configuration uv reads: the user's or the machine's.

    A uv.toml or pyproject.toml of the working directory, or of one above it, can be another's.
    """
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    files = [os.path.join(directory, "uv", "uv.toml") for directory in (home, "/etc")]
    existing = [each for each in files if os.path.isfile(each)]
    if {"UV_CONFIG_FILE", "UV_NO_CONFIG"} & os.environ.keys():
        return {}
    return {"UV_CONFIG_FILE": existing[0]} if existing else {"UV_NO_CONFIG": "1"}


def uv_options(configuration):
    """Return the options of uv that have no variable."""
    unset = ("", "0", "false", "no", "off")
    return [] if configuration.get("no-index", "").lower() in unset else ["--no-index"]


def print_variables(*options):
    """Print options of pip as its variables, for programs that do not take the options."""
    for name, value in variables(options).items():
        sys.stdout.write(f"{name}={value}\0")


def variables(options):
    """Return the options about sources of packages as variables, such as ``PIP_INDEX_URL``.

    Other options are ignored. A list is appended to the value of its variable.
    """
    lists = {"extra_index_url", "find_links", "trusted_host"}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in ("--index-url -i", "--find-links -f", "--extra-index-url", "--trusted-host"):
        parser.add_argument(*names.split(), action="append", default=[])
    for name in ("--cert", "--proxy"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("--no-index", action="append_const", const="1", default=[])
    found = {}
    for name, values in vars(parser.parse_known_args(list(options))[0]).items():
        variable = f"PIP_{name.upper()}"
        if values and name in lists:
            values = [directory_url(each) if os.path.isdir(each) else each for each in values]
            found[variable] = " ".join([*os.environ.get(variable, "").split(), *values])
        elif values:
            found[variable] = values[-1]
    if "PIP_PROXY" in found:
        found["HTTPS_PROXY"] = found["HTTP_PROXY"] = found["PIP_PROXY"]
    return found


def has_wheel(torch, configuration, python=""):
    """Return whether one of pip's directories has a PyTorch that the file `torch` requires.

    `python` is a tag such as ``cp312`` (default: of this Python).
    """
    with open(torch, encoding="utf-8") as file:
        versions = re.findall(r"^torch==([\w.]+)", file.read(), re.MULTILINE)
    directories = map(_path, configuration.get("find-links", "").replace(",", " ").split())
    python = python or "cp{}{}".format(*sys.version_info)
    return any(
        glob.glob(os.path.join(glob.escape(directory), f"torch-{version}[+-]*{python}-*.whl"))
        for directory in directories
        for version in versions
    )


def _path(source):
    return source[len("file://") :] if source.startswith("file://") else source


def torch_build(torch, options, configuration):
    """Return the build of PyTorch: ``cpu``, ``cu128``, ``auto``, "" for the package index's own.

    The file `torch` has its requirement, or all packages with their hashes; it is not installed
    unless the options name the file.
    """
    if torch not in options or has_wheel(torch, configuration):
        return ""
    if "--require-hashes" in options:
        return locked_torch_build(torch)
    if answers(TORCH_INDEX):
        return "auto"
    print(
        f"note: {TORCH_INDEX} is not reachable: installing the package index's own PyTorch\n"
        "hint: for another build: export PIP_FIND_LINKS=DIR, with its wheel in DIR",
        file=sys.stderr,
    )
    return ""


def locked_torch_build(file):
    """Return the build of PyTorch that a lock file names, such as ``cpu``; "" if it names none."""
    with open(file, encoding="utf-8") as text:
        pinned = re.search(r"^torch==[\w.]+\+(\w+)", text.read(), re.MULTILINE)
    return pinned[1] if pinned else ""


def answers(url):
    """Return whether a server answers at all; the installer checks its certificate."""
    try:
        urllib.request.urlopen(url, timeout=20).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException) as error:
        return isinstance(getattr(error, "reason", error), ssl.SSLError)
    return True
