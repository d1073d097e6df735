#!/usr/bin/env python3
"""Print how many lines each package has now, next to its budget. Over budget is not an error."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = (".py", ".bash", ".sh")
LIB = {
    **{"script": 1200, "configuration": 1500, "runtimes": 1350, "store": 200, "images": 1150},
    **{"packages": 1850, "jobs": 2050, "commands": 1000, "repositories": 1050, "assets": 270},
    **{"doctor": 1150, "": 12800},
}
EXTRAS = {
    **{"docker": 250, "enroot": 90, "pyxis": 160, "bundle": 600, "wheelhouse": 400},
    **{"overlay_speed": 280, "explain": 600, "restarts": 450, "frozen": 300},
    **{"rerun": 150, "usage": 250, "reports": 700, "interactive": 200, "sweep": 100},
    **{"evaluate": 90, "site_check": 450, "job_check": 300, "completion": 150, "": 5600},
    **dict.fromkeys(("card", "estimate", "nodes", "scale", "throughput"), 250),  # beyond the sum
}


def lines(folder, kinds):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name.endswith(kinds))
    files = (path for path in files if "tests" not in path.relative_to(ROOT).parts[1:])  # of extras
    return sum(path.read_bytes().count(b"\n") for path in files)


def main():
    print(f"{'package':20} {'lines':>7} {'budget':>7}")
    for name, budgets in (("lib", LIB), ("extras", EXTRAS)):
        packages = sorted(each.name for each in ROOT.glob(f"{name}/[!_]*") if each.is_dir())
        for package in [*packages, ""] if packages else []:
            count, budget = lines(ROOT / name / package, CODE), budgets.get(package, "-")
            print(f"{name + '/' + package:20} {count:7} {budget:>7}")
    print(f"{'tests/':20} {lines(ROOT / 'tests', CODE):7} {'-':>7}")
    print(f"{'tests/golden/':20} {lines(ROOT / 'tests/golden', ''):7} {4000:7}")


if __name__ == "__main__":
    main()
