"""What the benches share: running a program, its time and its memory, and medians.

A bench is a file `NAME.py` beside this one with a function `run(context)` that yields `Row`s. This
process stays small: on Linux a program's peak memory counts from that of the process that starts it.
"""

import dataclasses
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


@dataclasses.dataclass
class Context:
    """What every bench is given."""

    lathe: Path
    model: Path
    runs: int
    scratch: Path
    formats: list[str]


@dataclasses.dataclass
class Row:
    """A line of the table. `target` is the least that ours must be better by, if there is one."""

    name: str
    ours: float
    theirs: float
    unit: str
    target: float | None = None
    higher_is_better: bool = False

    @property
    def factor(self):
        """How many times better ours is."""
        return self.ours / self.theirs if self.higher_is_better else self.theirs / self.ours


@dataclasses.dataclass
class Run:
    """One run of a program."""

    seconds: float
    cpu: float  # seconds of processor time, the system's included
    peak_mb: float
    output: str


def places(context):
    """Where to write: on the disk, whose end `create` waits for and others do not, and in memory
    (where /dev/shm is), where nobody waits and which shows what a program itself takes."""
    found = {"disk": context.scratch}
    if os.access("/dev/shm", os.W_OK):
        found["memory"] = Path(f"/dev/shm/{context.scratch.name}")
        found["memory"].mkdir(exist_ok=True)
    return found


def measure(command, **options):
    """Runs a program to its end. It must succeed."""
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        command = list(map(str, command))
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {child.returncode}\n{text}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6, text)


def alternate(runs, *programs):
    """Runs the programs by turns, `runs` times, after one round that does not count. Each is a
    function that gives a `Run`; the result holds each one's list of them."""
    for program in programs:
        program()
    rounds = [[program() for program in programs] for _ in range(runs)]
    return [list(column) for column in zip(*rounds)]


def median(runs, key):
    """The median of an attribute."""
    return statistics.median(getattr(run, key) for run in runs)


def own_peak_mb():
    """This process's own peak, below which no program's can be measured."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
