"""Install packages with uv or pip, from the sources that pip is configured with.

Runs inside the environment, with the venv's Python and only its standard library. uv does not read
pip.conf, so pip's directories, indexes and certificates are passed on to it, in the environment,
because the address of an index can contain a password.

Usage: python install_packages.py WHEELHOUSE FOLDER uv|pip UV_FILE TORCH_FILE [OPTION...]
       python install_packages.py WHEELHOUSE FOLDER run SCRIPT

WHEELHOUSE is the only source of packages, unless it is empty. FOLDER is the working directory: that
of the repositories, which the options name, or the one that SCRIPT is run in.
"""

import configparser
import glob
import http.client
import os
import re
import ssl
import sys
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
TORCH_INDEX = "https://download.pytorch.org/whl/"


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
        # pip takes the best version of all its indexes; uv by default stops at the first
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_SOURCES": "1",  # [tool.uv.sources] of a repository, which pip does not know
    }
    for option, variable in UV_VARIABLES.items():
        words = configuration.get(option, "").split()
        if option == "extra-index-url":
            words = [word for word in words if _exists(word)]  # uv stops at a missing folder
        if words:
            found[variable] = ("," if option == "find-links" else " ").join(words)
    return {name: value for name, value in found.items() if name not in os.environ}


def uv_options(configuration):
    """Return the options of uv for what it takes from no variable."""
    unset = ("", "0", "false", "no", "off")
    return [] if configuration.get("no-index", "").lower() in unset else ["--no-index"]


def _exists(source):
    return not source.startswith("file://") or os.path.isdir(source[len("file://") :])


def has_wheel(torch, configuration, python=""):
    """Return whether one of pip's directories has a PyTorch that the file `torch` requires.

    `python` is a tag such as ``cp312`` (default: of this Python).
    """
    with open(torch, encoding="utf-8") as file:
        versions = re.findall(r"^torch==([\w.]+)", file.read(), re.MULTILINE)
    folders = map(_path, configuration.get("find-links", "").replace(",", " ").split())
    python = python or "cp{}{}".format(*sys.version_info)
    return any(
        glob.glob(os.path.join(glob.escape(folder), f"torch-{version}[+-]*{python}-*.whl"))
        for folder in folders
        for version in versions
    )


def _path(source):
    return source[len("file://") :] if source.startswith("file://") else source


def answers(url):
    """Return whether a server answers at all; the installer checks its certificate."""
    try:
        urllib.request.urlopen(url, timeout=20).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException) as error:
        return isinstance(getattr(error, "reason", error), ssl.SSLError)
    return True


def torch_build(torch, arguments, configuration):
    """Return the build of PyTorch: ``cpu``, ``cu128``, ``auto``, "" for the package index's own.

    The file `torch` has its requirement, or all packages with their hashes; it is not installed
    unless the arguments name the file.
    """
    if torch not in arguments or has_wheel(torch, configuration):
        return ""
    if "--require-hashes" not in arguments:
        if answers(TORCH_INDEX):
            return "auto"
        print(
            f"note: {TORCH_INDEX} is not reachable: installing the package index's own PyTorch\n"
            "hint: for another build: export PIP_FIND_LINKS=DIR, with its wheel in DIR",
            file=sys.stderr,
        )
        return ""
    with open(torch, encoding="utf-8") as file:
        pinned = re.search(r"^torch==[\w.]+\+(\w+)", file.read(), re.MULTILINE)
    return pinned[1] if pinned else ""


def use_wheelhouse(folder):
    """Make a directory the only source, for the installer and everything that it starts."""
    for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        if not name.endswith("_CACHE_DIR"):
            del os.environ[name]
    url = "file://" + urllib.parse.quote(folder)  # a list is split at spaces or commas
    os.environ.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=url, PIP_CONFIG_FILE=os.devnull)
    os.environ.update(UV_OFFLINE="1", UV_NO_CONFIG="1")


def run_script(script):
    """Become a script of the user, with the venv of this Python active."""
    os.environ["VIRTUAL_ENV"] = sys.prefix
    os.environ["PATH"] = os.path.join(sys.prefix, "bin") + os.pathsep + os.environ["PATH"]
    command = [script] if os.access(script, os.X_OK) else ["bash", script]
    os.execvp(command[0], command)


def main(wheelhouse, folder, installer, *arguments):
    """Become the installer, with the sources and the PyTorch build that fit this machine."""
    configuration = pip_configuration()
    if wheelhouse:
        use_wheelhouse(wheelhouse)
        configuration = {"no-index": "1", "find-links": os.environ["PIP_FIND_LINKS"]}
    if folder:
        os.chdir(folder)
    if installer == "run":
        os.environ.update(uv_environment(configuration))
        run_script(*arguments)
    uv, torch, *arguments = arguments
    build = "" if wheelhouse else torch_build(torch, arguments, configuration)
    if installer == "uv":
        os.environ.update(uv_environment(configuration))
        if build:
            os.environ.setdefault("UV_TORCH_BACKEND", build)
        command = [uv, "pip", "install", "--python", sys.executable]
        os.execv(uv, [*command, *uv_options(configuration), *arguments])
    if build and not (build == "auto" and os.path.exists("/dev/nvidiactl")):
        index = TORCH_INDEX + build.replace("auto", "cpu")
        arguments = ["--extra-index-url", index, *arguments]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
    os.execv(sys.executable, [*pip, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
