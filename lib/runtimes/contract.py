"""The environment inside: one contract for every runtime.

Before the container starts, bash unsets what must not leak from the host. Inside, one POSIX sh text
sets the program's environment and ends in ``exec "$@"``, so signals and exit codes pass through and
no process is between ``srun`` and the program. The variables are unset on the host, not inside,
because the image's own values of the same names (CC, PYTHONPATH) must stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lib.configuration.layers import Settings
from lib.configuration.paths import ROOTED, Paths, expand, is_below
from lib.configuration.schema import EnvironmentKeys
from lib.configuration.snapshot import refuse_secrets
from lib.configuration.training import Training
from lib.runtimes.packages import OVERLAY_COMMAND, SET_UP_COMMAND
from lib.script.command import call, export, wrapped
from lib.script.errors import LongshipError, offline_modes
from lib.script.quoting import NAME, Expansion, Word, name, word

# Caches that would otherwise fill a 20 GB home directory, each under <scratch_dir>/cache; the
# caller's own are kept.
CACHES = (
    ("XDG_CACHE_HOME", "xdg"),
    ("HF_HOME", "huggingface"),
    ("PIP_CACHE_DIR", "pip"),
    ("UV_CACHE_DIR", "uv"),
    ("TORCH_HOME", "torch"),
    ("TORCH_EXTENSIONS_DIR", "torch_extensions"),
    ("NUMBA_CACHE_DIR", "numba"),
    ("MPLCONFIGDIR", "matplotlib"),
    ("WANDB_CACHE_DIR", "wandb/cache"),
    ("WANDB_CONFIG_DIR", "wandb/config"),
    ("WANDB_DATA_DIR", "wandb/data"),
)
# The same, but in a job on its node: on a shared file system, ranks of several nodes delete each
# other's files, and a rank that dies of it hangs the others.
COMPILED = (
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("TRITON_CACHE_DIR", "triton"),
    ("CUDA_CACHE_PATH", "cuda"),
    ("MIOPEN_USER_DB_PATH", "miopen"),
    ("MIOPEN_CUSTOM_CACHE_DIR", "miopen"),
)
LOGINS = (("HF_TOKEN_PATH", "token"), ("HF_STORED_TOKENS_PATH", "stored_tokens"))
# These would come before HF_HOME.
HUB_CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")

# Comment above the text in emitted scripts.
CONTRACT = "The environment inside, the same for every runtime: POSIX sh."
# What runs it, before the user's command.
SHELL: tuple[Word, ...] = ("/bin/sh", "-c", Expansion('"$longship_contract"'), "longship")

OFFLINE = (
    *("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"),
    "TRANSFORMERS_OFFLINE",
)


class Bind(NamedTuple):
    """A bind mount: a directory or file of the host, and its path inside."""

    source: str
    target: str
    read_only: bool = False


def forget_lines(environment: EnvironmentKeys) -> list[str]:
    """Return the lines that unset what must not leak from the host."""
    words: list[str] = []
    for each in environment.unset:
        prefix = each.endswith("*")
        plain = name(each[:-1] if prefix else each)
        words.append(Expansion(f'"${{!{plain}@}}"') if prefix else plain)
    kept = [each for each in environment.unset if each[:1].islower() or each.startswith("LC_")]
    return [
        wrapped("host_forget", *dict.fromkeys(words)),
        *([call("exported_drop", *kept)] if kept else []),
    ]


def caller_lines(settings: Settings, training: Training) -> list[str]:
    """Return the line with which the contract keeps the caller's caches, and names the rest."""
    caches = dict((*CACHES, *COMPILED))
    others = ["PYTHONNOUSERSITE", "UV_LINK_MODE", *dict(LOGINS), *HUB_CACHES, *OFFLINE]
    others += [*training.variables(), *settings.configuration.environment.set]
    others = [each for each in dict.fromkeys(others) if each not in caches]
    return [wrapped("caches_keep", *caches, "--", *others)]


def lost_names(environ: Mapping[str, str]) -> list[str]:
    """Return the variables whose names no POSIX shell has; exported functions are not variables."""
    return [
        each for each in environ if not NAME.fullmatch(each) and not each.startswith("BASH_FUNC_")
    ]


def configured_binds(
    settings: Settings, paths: Paths, training: Training
) -> tuple[tuple[Bind, ...], tuple[Bind, ...]]:
    """Return the binds that a launch requires, and those of paths that need not exist.

    The latter are the site's directories, those that the settings of the stack name, and the
    configured ones: scripts create those first, and doctor.py, which creates none, runs without.
    """

    def bind(text: str) -> Bind:
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        if mode not in ("", "ro", "rw") or " /" in text or (target and target[0] != "/"):
            raise LongshipError(
                f'container.binds in {settings.origins["container.binds"]}: not a bind: "{text}"',
                'write "/source", "/source:/target" or "/source:/target:ro"',
            )
        source = expand("container.binds", source, settings)
        return Bind(source, target or source, mode == "ro")

    own = [Bind(str(paths.root), str(paths.root))]
    own += [bind(text) for text in settings.configuration.container.binds]
    named = {each.target for each in own}
    site = [Bind(each, each) for each in settings.machine.binds if each not in named]
    site += [Bind(each, each) for each in map(str, paths.trees)]
    seen = [each.target for each in (*own, *site)]
    data = [
        Bind(each, each)
        for each in dict.fromkeys(directory for _, directory in training.directories())
        if not any(is_below(each, target) for target in seen)
    ]
    return tuple(dict.fromkeys(own)), tuple(dict.fromkeys((*site, *data)))


def patched_files(settings: Settings, paths: Paths) -> tuple[Bind, ...]:
    """Return the binds of patched files, which replace files of the image."""
    origin = settings.origins["container.patched_files"]
    found = []
    for target, ours in settings.configuration.container.patched_files.items():
        if not target.startswith("/") or target.endswith("/") or "\n" in target + ours or not ours:
            raise LongshipError(
                f'container.patched_files in {origin}: not two files: "{target}" = "{ours}"',
                'write "/path/in/the/image/file.py" = "patches/files/file.py"',
            )
        rooted = ours.startswith(ROOTED)
        source = expand("container.patched_files", ours, settings) if rooted else paths.root / ours
        found.append(Bind(str(source), target, read_only=True))
    return tuple(found)


def environment_script(
    settings: Settings,
    paths: Paths,
    training: Training,
    *,
    online: bool,
    directories: Sequence[str] = (),
) -> str:
    """Return the POSIX sh text that sets the program's environment and becomes the program.

    It is the source for ``/bin/sh -c TEXT longship COMMAND [ARGUMENT...]``. The directories are
    of overlay and venv; the last one comes first on PATH.
    """
    environment = settings.configuration.environment
    refuse_secrets(environment, settings.origins)
    shares_hub = paths.is_shared and "HF_HOME" not in environment.set
    hub = export("HF_HUB_CACHE", paths.hub / "hub")
    lines = [
        _CALLERS,
        export("PYTHONNOUSERSITE", "1"),
        export("PIP_USER", "0"),  # whatever pip.conf says: what is installed there is not seen
        export("UV_LINK_MODE", "copy"),  # a change in one venv must not reach uv's cache and others
        export("LONGSHIP_ROOT", paths.root),
        export("LONGSHIP_MACHINE", settings.machine.name),
        export("LONGSHIP_STACK", settings.stack.name),
        export("LONGSHIP_PROJECT_DIR", paths.project_dir),
        export("LONGSHIP_SCRATCH_DIR", paths.scratch_dir),
        export("LONGSHIP_CHECKPOINT_DIR", paths.checkpoint_dir),
        export("LONGSHIP_REPOSITORIES", paths.repositories),
        *(export(name, value) for name, value in training.variables().items()),
        call("unset", *HUB_CACHES),
        *(
            f'is_callers {variable} || export {variable}="{top}/{directory}"'
            for caches, top in (
                (CACHES, "$LONGSHIP_SCRATCH_DIR/cache"),
                (COMPILED, "${LONGSHIP_NODE_CACHE:-$LONGSHIP_SCRATCH_DIR/cache}"),
            )
            for variable, directory in caches
        ),
        # a login is the user's own, whatever cache is used
        *(f'export {variable}="$HOME"/.cache/huggingface/{file}' for variable, file in LOGINS),
        *([f"is_callers HF_HOME || {hub}"] if shares_hub else []),
        call("unset", *OFFLINE) if online else call("export", *(f"{each}=1" for each in OFFLINE)),
        *(export(variable, value) for variable, value in environment.set.items()),
        _REPLACED,
        *(
            _read_token(variable, expand("environment.token_files", file, settings))
            for variable, file in environment.token_files.items()
        ),
    ]
    for directory in directories:
        lines += [export("VIRTUAL_ENV", directory), 'export PATH="$VIRTUAL_ENV"/bin:"$PATH"']
        lines.append(_PUT_FIRST)
    overlay = settings.configuration.packages.overlay
    install = settings.command(*(OVERLAY_COMMAND if overlay else SET_UP_COMMAND))
    return "\n".join([*lines, _START.format(offline_modes(install))])


# Images of vendors, such as NeMo's, have a PYTHONPATH, which Python puts before all packages.
_PUT_FIRST = """\
for longship_packages in ${PYTHONPATH:+"$VIRTUAL_ENV"/lib/python*/site-packages}; do \
PYTHONPATH=$longship_packages:$PYTHONPATH; done"""

# The last lines of the contract: a command that cannot be run is reported in two lines.
_START = """\
case $1 in */*) [ ! -f "$1" ] || [ -x "$1" ] || {{
  printf '%s\\n' "error: cannot run $1: not executable" "hint: run: chmod +x $1; or: python $1" >&2
  exit 126; }} ;; esac
case $1 in cd | export | source) false ;; *) command -v -- "$1" >/dev/null ;; esac || {{
  printf '%s\\n' "error: command not found inside the environment: \\"$1\\"" >&2
  case $1 in
    *' '*) echo "hint: type it without the quotes around it: $1" ;;
    *.py) echo "hint: run: python $*" ;;
    cd | export | source) echo "hint: run: bash -c '$1 ... && COMMAND'" ;;
    *) echo "hint: if a Python package has it, add the package to the requirements and run: {}; \
or choose an image that has it: container.image in configuration.toml" ;;
  esac >&2
  exit 127
}}
exec "$@\""""


# The first lines: which of the following variables the caller has set (`caller_lines`), and how.
_CALLERS = """\
is_callers() { case ${LONGSHIP_CALLERS-} in *" $1 "*) ;; *) return 1 ;; esac; }
for longship_name in ${LONGSHIP_CALLERS-}; do
  eval "longship_was_$longship_name=\\${$longship_name-}"
done"""

# The first task names those that have another value now, each with the setting that decides.
_REPLACED = f"""\
longship_replaced=
for longship_name in ${{LONGSHIP_CALLERS-}}; do
  eval "[ \\"\\${{$longship_name-}}\\" = \\"\\$longship_was_$longship_name\\" ]" && continue
  case $longship_name in
    TRAINING_*) longship_by="[training]" ;;
    {"|".join(OFFLINE)}) longship_by="--online, environment.set" ;;
    {"|".join(HUB_CACHES)}) longship_by=HF_HOME ;;
    *) longship_by=environment.set ;;
  esac
  longship_replaced="$longship_replaced${{longship_replaced:+, }}$longship_name ($longship_by)"
done
unset LONGSHIP_CALLERS
case ${{SLURM_PROCID:-0}}$longship_replaced in 0?*)
  echo "note: replaced inside the environment, by these settings: $longship_replaced" >&2 ;; esac"""


def _read_token(variable: str, file: str) -> str:
    """Return the text that reads a token at run time: no argument and no script contains it."""
    return (
        f'if [ -z "${{{name(variable)}:-}}" ] && [ -r {word(file)} ]; then\n'
        f"  IFS= read -r {variable} <{word(file)} || :\n"
        f"  export {variable}\n"
        "fi"
    )
