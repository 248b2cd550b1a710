"""A worker in an emulated Arm user land joins a pool on loopback, and a tuner on x86 tunes for it.

`ARM_USERLAND` names a folder that `scripts/arm_userland.sh DIR --pool` has made. The
worker's child processes are Arm programs too: the kernel has to hand those to qemu (binfmt_misc).
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pool_cases import local_pool

import ansorlite as al
from ansorlite.pool.runner import RemoteRunner
from ansorlite.pool.status import devices_of
from ansorlite.records import read_log

pytestmark = pytest.mark.slow
VARIABLE, BINFMT = "ARM_USERLAND", Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
ROOT = Path(__file__).parents[2]
JOIN_S, TRIALS = 120.0, 6


def started(userland: Path, port: int, cache: Path) -> "subprocess.Popen[bytes]":
    """The worker `arm0`, emulated."""
    env = {
        **os.environ,
        "QEMU_LD_PREFIX": str(userland),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(userland / "site")]),
        "ANSORLITE_CACHE_DIR": str(cache),
    }
    python = userland / "usr" / "bin" / "python3.11"
    command = [python, "-m", "ansorlite", "pool", "worker", f"127.0.0.1:{port}", "--name", "arm0"]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE)


def joined(pool: Any) -> dict[str, Any]:
    """What the pool knows of the first device that has joined."""
    end = time.monotonic() + JOIN_S
    while time.monotonic() < end:
        found = [d for d in asyncio.run(devices_of(pool)) if "fingerprint" in d]
        if found:
            return dict(found[0])
        time.sleep(1.0)
    raise AssertionError("no device has joined")


@pytest.mark.skipif(sys.platform != "linux", reason="qemu-user runs on Linux")
def test_an_emulated_worker_is_tuned_for(tmp_path: Path) -> None:
    userland = os.environ.get(VARIABLE)
    if not userland:
        pytest.skip(f"{VARIABLE} names no folder of scripts/arm_userland.sh")
    if not BINFMT.exists():
        pytest.skip(f"{BINFMT} is not there: Arm programs do not start by themselves")
    log = tmp_path / "log.jsonl"
    with local_pool() as pool:
        worker = started(Path(userland), pool.port, tmp_path)
        try:
            device = joined(pool.pool)
            with RemoteRunner(pool.address, device["fingerprint"]) as runner:
                assert runner.target.arch == "aarch64"
                task = al.workload("GMM:0", target=runner.target)
                found = al.tune(task, TRIALS, runner=runner, log=log, progress=False)
        finally:
            worker.terminate()
            _, errors = worker.communicate(timeout=60)
    assert found.best is not None, errors.decode()
    records = read_log(log).records
    assert [r.status for r in records] == ["OK"] * TRIALS  # checked on the device, against numpy
    assert {r.device for r in records} == {"arm0"}
    assert {r.target for r in records} == {runner.target.fingerprint}
