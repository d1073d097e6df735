"""Make the results folder: the configuration that NeMo trains with, and what its launcher keeps.

    python compose.py CONF_DIR FOLDER NAME [OVERRIDE...]

CONF_DIR is the launcher's folder ``conf``; overrides are those of its ``main.py``.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

# What the launcher's files compute with.
RESOLVERS = {
    "multiply": lambda x, y: x * y,
    "divide_ceil": lambda x, y: math.ceil(x / y),
    "divide_floor": lambda x, y: math.floor(x / y),
}


def write_configuration(conf_dir: str, file: Path, overrides: list[str]) -> None:
    """Compose the launcher's stage ``training`` and write it with no reference left.

    Parameters
    ----------
    conf_dir : str
        The launcher's folder ``conf``.
    file : Path
        Each node writes the same, in one step, so that none reads half of it.
    overrides : list of str
        In Hydra's grammar; later ones win.

    Raises
    ------
    HydraException, OmegaConfBaseException
        If an override names what is not there, or a reference leads nowhere.
    """
    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
    with initialize_config_dir(os.path.abspath(conf_dir), version_base="1.2"):
        training = compose("config", overrides).training
    OmegaConf.resolve(training)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.uname().nodename}.{os.getpid()}")
    OmegaConf.save(training, partial)
    partial.replace(file)


def keep_record(folder: Path, name: str) -> None:
    """Write what the launcher's users look for: command line, job, its script, its log.

    Parameters
    ----------
    folder : Path
        The results of a model.
    name : str
        The model's, as files are named after it.
    """
    (folder / "launcher_cmd.log").write_text(shlex.join(sys.argv) + "\n", encoding="utf-8")
    job, run = os.environ.get("SLURM_JOB_ID"), Path(os.environ.get("RUN_DIR", "/nowhere"))
    if not job:
        return
    (folder / "launcher.log").write_text(f"Submitted batch job {job}\n", encoding="utf-8")
    if (run / "job.sbatch").is_file():
        shutil.copyfile(run / "job.sbatch", folder / f"{name}_submission.sh")
        log = folder / f"log-{name}_{job}.out"
        log.unlink(missing_ok=True)
        log.symlink_to(f"{run}.log")


def main() -> None:
    """Tell mistakes in two lines."""
    conf_dir, results, name, *overrides = sys.argv[1:]
    folder = Path(results)
    try:
        write_configuration(conf_dir, folder / f"{name}_hydra.yaml", overrides)
    except (HydraException, OmegaConfBaseException) as error:
        why = " ".join(str(error).split())
        sys.exit(f"error: the model's configuration: {why}\nhint: see {conf_dir}/training")
    if os.environ.get("RANK", os.environ.get("SLURM_NODEID", "0")) == "0":
        keep_record(folder, name)


if __name__ == "__main__":
    main()
