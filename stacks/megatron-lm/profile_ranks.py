"""Execute the training script, under Nsight Systems in the ranks that TRAINING_PROFILE lists.

    python profile_ranks.py SCRIPT [ARGUMENT...]

The report of a rank is `profile_rank<N>.nsys-rep` in the run directory, or outside of a job in
`profiles` in the scratch directory.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Replace this process."""
    rank = os.environ["RANK"]
    command = [sys.executable, *sys.argv[1:]]
    if rank in os.environ["TRAINING_PROFILE"].split():
        scratch = os.environ["LONGSHIP_SCRATCH_DIR"]
        directory = Path(os.environ.get("RUN_DIR") or Path(scratch, "profiles"))
        directory.mkdir(parents=True, exist_ok=True)
        command = [
            *("nsys", "profile", "--trace=cuda,nvtx", "--sample=none"),
            # Megatron starts and stops the recording; the training continues after it.
            *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
            *("--force-overwrite=true", f"--output={directory}/profile_rank{rank}"),
            *command,
        ]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
