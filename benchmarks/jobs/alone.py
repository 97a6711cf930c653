"""One contestant's job in a process of its own.

    python -m benchmarks.jobs.alone JOB CONTESTANT [--quick]

Prints one line of JSON: processor seconds, bytes at the peak beyond what was there when the job
began (none where the system does not tell), and how good the answer is.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.jobs.contests import JOBS
from benchmarks.memory import resident

__all__ = ["alone"]

STATUS = Path("/proc/self/status")


def alone(job: str, contestant: str, quick: bool) -> dict[str, Any]:
    """Do it here."""
    wanted = next(j for j in JOBS if j.name == job)
    work = wanted.contestant(contestant).prepare(quick)
    before = start_of_memory()
    start = process_time()
    answer = work()
    seconds = process_time() - start
    taken = None if before is None else resident("VmHWM") - before
    return {"seconds": seconds, "bytes": taken, "quality": wanted.judge(answer, quick)}


def start_of_memory() -> int | None:
    """What the process holds now, its peak so far forgotten."""
    if not STATUS.exists():
        return None
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", choices=[job.name for job in JOBS])
    parser.add_argument("contestant")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(json.dumps(alone(given.job, given.contestant, given.quick)))


if __name__ == "__main__":
    main()
