"""Slurm with the plugin Pyxis: an srun that starts its tasks in real containers.

A stand-in, as the plugin cannot be installed here: the containers are Apptainer's. It takes the
options that Pyxis 0.24 has, refuses others, and mounts nothing that was not asked for. Without its
options a task runs on the bare host, as with the real one.

With an engine, it is CSCS' Container Engine: it takes ``--environment`` too, a file with the keys
that the site's reference has, in which it expands ``${NAME}`` as the reference says.
"""

import shutil

import pytest

from support import cache, processes

# What only the image has.
MARK = "/etc/longship-tests-image"

SRUN = """#!/usr/bin/env python3
import os, sys

ENGINE = {engine}
VALUES = {{"container-image", "container-mounts", "container-workdir", "container-env"}}
FLAGS = {{"container-mount-home", "no-container-mount-home", "no-container-remap-root",
         "container-remap-root", "no-container-entrypoint", "container-entrypoint"}}


KEYS = {{"base_environment": (str, list), "image": str, "workdir": str, "entrypoint": bool,
        "writable": bool, "mounts": list, "env": dict, "annotations": dict}}


def refuse(text):
    sys.exit("srun: error: " + text)


def expand(text):
    found = os.path.expandvars(text)
    return found if "$" not in found else refuse("pyxis: undefined variable: " + text)


def read_environment(name):
    import tomllib

    if not name.startswith(("/", "./")):
        refuse("pyxis: no environment of this name in EDF_PATH: " + name)
    with open(name, "rb") as file:
        found = tomllib.load(file)
    for key, value in found.items():
        if key not in KEYS or not isinstance(value, KEYS[key]):
            refuse("pyxis: " + name + ": " + key)
    tables = [found.get("annotations", {{}}), found.get("env", {{}})]
    while tables:
        for key, value in tables.pop().items():
            if isinstance(value, dict):
                tables.append(value)
            elif not isinstance(value, str):
                refuse("pyxis: " + name + ": " + key + " is no string")
    mounts = [expand(each) for each in found.get("mounts", [])]
    options = {{"container-image": expand(found.get("image", "")),
               "container-mounts": ",".join(mounts)}}
    if "workdir" in found:
        options["container-workdir"] = expand(found["workdir"])
    return options


own, given, words = [], {{}}, sys.argv[1:]
while words and words[0].startswith("-"):
    word = words.pop(0)
    name, equals, value = word.lstrip("-").partition("=")
    if ENGINE and name == "environment" and equals:
        given.update(read_environment(value))
    elif "container" not in name and name != "environment":
        own.append(word)
    elif name in VALUES and equals or name in FLAGS and not equals:
        given[name] = value
    else:
        refuse("unrecognized option " + word)
if given and not given.get("container-image"):
    refuse("pyxis: --container-mounts without --container-image")
if given:
    image = given["container-image"]
    with open(image, "rb") as file:
        if file.read(4) != b"hsqs":
            refuse("pyxis: " + image + " is no squashfs file")
    start = ["apptainer", "--quiet", "exec", "--contain", "--no-home", "--no-mount=tmp,cwd"]
    if "container-mount-home" in given:
        start += ["--bind", os.environ["HOME"]]
    for each in filter(None, given.get("container-mounts", "").split(",")):
        source, target, *flags = each.split(":")
        if ENGINE and flags == ["sqsh"]:
            start += ["--mount", f"type=bind,src={{source}},dst={{target}},image-src=/,ro"]
            continue
        if any(not set(flag.split("+")) <= {{"ro", "rw", "rprivate"}} for flag in flags):
            refuse("pyxis: mount flags: " + each)
        if not os.path.exists(source):
            refuse("pyxis: no such file or directory: " + source)
        start += ["--bind", ":".join([source, target, *(["ro"] if flags == ["ro"] else [])])]
    start += ["--pwd", given.get("container-workdir", "/"), image]
    words = start + words
os.execv({srun!r}, ["srun", *own, *words])
"""


@pytest.fixture(scope="session")
def squashfs_image(base_tar, require, session_environment):
    """Give the small Debian as an image of enroot's, with a file that nothing else has."""
    require("fuse")

    def build(partial):
        folder = partial.with_name("partial-unpacked-squashfs")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        unpack = ["tar", "--extract", "--exclude=./dev/*", "--file", base_tar, "-C", folder]
        processes.run(unpack, env=session_environment)
        (folder / MARK[1:]).write_text("the image\n")
        pack = ["mksquashfs", folder, partial, "-comp", "gzip", "-no-progress", "-quiet"]
        processes.run(pack, env=session_environment)
        processes.run(["chmod", "-R", "u+w", folder], env=session_environment)
        shutil.rmtree(folder)

    return cache.cached(f"{base_tar.stem}-marked.sqsh", build)


def write_srun(folder, *, engine=False):
    """Write the stand-in into a folder of its own, which jobs have first on PATH."""
    folder.mkdir()
    text = SRUN.format(srun=shutil.which("srun"), engine=engine)
    (folder / "srun").write_text(text)
    (folder / "srun").chmod(0o755)
    return folder
