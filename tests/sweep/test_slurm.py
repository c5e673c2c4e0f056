"""A sweep through a real Slurm of one node, which this test starts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sweep_project as project

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
CONTROLLER, NODE = 16817, 16818
TIMEOUT = 900.0
ROUNDS, LONG = 30, 600
"""Rounds of the two cells; the second one needs longer than the time limit of its job, a minute at most."""

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=5,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=5
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF State=UP
"""


@dataclass
class Cluster:
    """A Slurm of its own."""

    environment: dict[str, str]

    def tell(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()


def until(condition: Callable[[], object], seconds: float = TIMEOUT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if MISSING:
        pytest.skip(f"{', '.join(MISSING)}: not installed; apt install slurm-wlm munge")
    if os.getuid() != 0:
        pytest.skip("slurmd runs jobs as root only")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    conf = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    conf.write_text(CONF.format(host=host, folder=folder, controller=CONTROLLER, node=NODE))
    environment = {**project.environment(tmp_path / "locks"), "SLURM_CONF": str(conf)}
    environment["PATH"] += ":/usr/sbin"
    files = {"socket": "munge.sock", "key-file": "key", "pid-file": "munge.pid", "seed-file": "seed"}
    munge = [f"--{option}={folder / name}" for option, name in files.items()]
    started = [
        ["munged", "--foreground", "--force", f"--log-file={folder / 'munge.log'}", *munge],
        ["slurmctld", "-D", "-c", "-f", str(conf)],
        ["slurmd", "-D", "-N", host, "-f", str(conf)],
    ]
    processes = []
    with (folder / "output.log").open("w") as log:
        try:
            for command in started:
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
                time.sleep(1)
            slurm = Cluster(environment)
            until(lambda: slurm.tell("sinfo", "--noheader", "--partition=low", "--format=%t") == "idle", 60)
            yield slurm
            subprocess.run(["scancel", "--user=root"], env=environment, check=False)
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(30)


@pytest.mark.slow
def test_a_job_that_was_lost_is_told_though_the_budget_ends_meanwhile(
    made: Path, tmp_path: Path, cluster: Cluster
) -> None:
    """Jobs run one at a time: the first is killed, others begin and end in time, and the rest is taken back."""
    root = project.copy(made, tmp_path / "project", rounds=LONG, seeds=2, long=LONG)
    command = [project.HETFL, "sweep", project.NAME, "--on", "slurm", "--slurm=partition=low", "--budget", "35s"]
    with subprocess.Popen(
        command, cwd=root, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as sweep:
        listed = ["squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i"]
        until(lambda: cluster.tell(*listed))
        killed = cluster.tell(*listed)
        cluster.tell("scancel", "--signal=KILL", killed)
        output, _ = sweep.communicate(timeout=TIMEOUT)
    print(output)
    assert sweep.returncode == 2 and output.count("Slurm ended its job") == 1
    assert f"Slurm ended its job {killed}" in output and not cluster.tell("squeue", "--noheader")


@pytest.mark.slow
def test_jobs_that_are_preempted_or_reach_their_limit_give_the_same_records(
    made: Path, tmp_path: Path, cluster: Cluster
) -> None:
    settings = {"rounds": ROUNDS, "long": LONG, "seeds": 1}
    root = project.copy(made, tmp_path / "project", **settings)
    options = [f"--slurm={pair}" for pair in ("partition=low", "time=1", "signal_delay_s=5")]
    command = [project.HETFL, "sweep", project.NAME, "--on", "slurm", *options]
    sweep = subprocess.Popen(
        command, cwd=root, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until(lambda: max(project.last_rounds(root).values(), default=0) >= 5)
        # All CPUs for a job that goes first.
        cluster.tell("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
        output, _ = sweep.communicate(timeout=TIMEOUT)
    finally:
        sweep.kill()
    print(output)
    assert sweep.returncode == 0, output
    logs = "".join(path.read_text() for path in (root / ".hetfl" / "slurm").glob("*.err"))
    assert "DUE TO PREEMPTION" in logs and "this job is timed-out" in logs
    assert project.results(root) == project.trained(made, tmp_path / "reference", **settings)
    before = project.times(root)
    again = subprocess.run([project.HETFL, "sweep", project.NAME], cwd=root, env=cluster.environment, text=True)
    assert again.returncode == 0 and project.times(root) == before
