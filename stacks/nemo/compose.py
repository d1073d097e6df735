"""Write the results directory of a run: NeMo's configuration, and what its launcher keeps.

    python compose.py CONF_DIR [OVERRIDE...]

CONF_DIR is the launcher's directory ``conf``; overrides are those of its ``main.py``. All names
follow from the composed configuration, as the launcher's do. Prints the path of the file that NeMo
trains with.
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
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

# What the launcher's files compute with.
RESOLVERS = {
    "multiply": lambda x, y: x * y,
    "divide_ceil": lambda x, y: math.ceil(x / y),
    "divide_floor": lambda x, y: math.floor(x / y),
}


def compose_launcher(conf_dir: str, overrides: list[str]) -> DictConfig:
    """Compose the launcher's configuration and resolve its stage ``training``.

    Parameters
    ----------
    conf_dir : str
        The launcher's directory ``conf``.
    overrides : list of str
        In Hydra's grammar; later ones win.

    Raises
    ------
    HydraException, OmegaConfBaseException
        If an override names an unknown key, or a reference leads nowhere.
    """
    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
    with initialize_config_dir(os.path.abspath(conf_dir), version_base="1.2"):
        config = compose("config", overrides)
    OmegaConf.resolve(config.training)
    return config


def write_configuration(training: DictConfig) -> Path:
    """Write the configuration of the training to its results directory.

    Each node writes the same, in one step, so that no node reads half of it.
    """
    file = Path(training.run.results_dir).absolute() / f"{training.run.name}_hydra.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.uname().nodename}.{os.getpid()}")
    OmegaConf.save(training, partial)
    partial.replace(file)
    return file


def keep_record(folder: Path, job_name: str) -> None:
    """Write the other files that the launcher's users expect: command line, job ID, script, log.

    Parameters
    ----------
    folder : Path
        The results directory.
    job_name : str
        The launcher's name for the job, after which the files are named.
    """
    (folder / "launcher_cmd.log").write_text(shlex.join(sys.argv) + "\n", encoding="utf-8")
    job, run = os.environ.get("SLURM_JOB_ID"), Path(os.environ.get("RUN_DIR", "/nowhere"))
    if not job:
        return
    (folder / "launcher.log").write_text(f"Submitted batch job {job}\n", encoding="utf-8")
    if (run / "job.sbatch").is_file():
        shutil.copyfile(run / "job.sbatch", folder / f"{job_name}_submission.sh")
        log = folder / f"log-{job_name}_{job}.out"
        log.unlink(missing_ok=True)
        log.symlink_to(f"{run}.log")


def main() -> None:
    """Report errors in two lines."""
    conf_dir, *overrides = sys.argv[1:]
    try:
        config = compose_launcher(conf_dir, overrides)
        job_name = config.cluster.job_name_prefix + config.training.run.name
        file = write_configuration(config.training)
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        sys.exit(
            f"error: cannot compose the configuration: {reason}\nhint: see {conf_dir}/training"
        )
    if os.environ.get("RANK", os.environ.get("SLURM_NODEID", "0")) == "0":
        keep_record(file.parent, job_name)
    print(file)


if __name__ == "__main__":
    main()
