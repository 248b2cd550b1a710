"""RemoteRunner: several devices give what one machine gives; faults cost one trial."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure_kernels as mk
import numpy as np
import pytest

pytest.importorskip("distributed")
pytest.importorskip("cryptography")

from pool_cases import LocalPool, local_pool, pretended
from search_cases import Pretender, _spoiled, matmul

import ansorlite as al
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import MachineError, MeasureError, UsageError
from ansorlite.graph.build import GraphBuilder
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import CheckSpec, PrepareResult
from ansorlite.pool.certificates import make_pool
from ansorlite.pool.device import PretendedDevice, PretendedRunner, this_device
from ansorlite.pool.runner import RemoteRunner
from ansorlite.pool.status import devices_of, drain, status_text
from ansorlite.pool.worker import Host
from ansorlite.records import read_log
from ansorlite.target import Target

Fields = list[tuple[Any, ...]]


def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def images(n: int) -> list[KernelImage]:
    """Images that differ, for pretended devices."""
    image = mk.kernel()
    return [replace(image, object_bytes=image.object_bytes + b"%d" % k) for k in range(n)]


def told(log: Path) -> Fields:
    """What a log holds in the order in which candidates were asked, without times and devices."""
    found = sorted(read_log(log).records, key=lambda r: r.trial)
    return [(r.trial, r.round, r.sketch, str(r.holes), r.latency_s) for r in found]


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    """Four pretended devices, which take two milliseconds a trial."""
    with local_pool(*pretended(4, 0.002)) as found:
        yield found


@pytest.fixture
def runner(pool: LocalPool) -> Iterator[RemoteRunner]:
    with RemoteRunner(pool.address) as found:
        assert found.prepare("t", mk.check_spec()).ok
        yield found


# ---- the search ---------------------------------------------------------------------------------


def test_a_search_finds_what_it_finds_locally(pool: LocalPool, tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("local.jsonl", "pool.jsonl")]
    options: dict[str, Any] = {"n_trials": 13, "round_size": 6, "progress": False}
    with RemoteRunner(pool.address) as remote:
        for log, runner in zip(logs, (PretendedRunner(), remote), strict=True):
            al.tune(matmul(), log=log, runner=runner, builder=Pretender(), **options)
        assert told(logs[0]) == told(logs[1])
        records = read_log(logs[1]).records
        assert {r.device for r in records} <= {f"device{k}" for k in range(4)}
        assert len({r.device for r in records}) > 1
        assert not any(r.device for r in read_log(logs[0]).records)

        # A round whose trials came in any order goes on with those that are missing.
        lines = logs[1].read_text().splitlines(True)
        whole = told(logs[1])
        last = [n for n, line in enumerate(lines) if json.loads(line)["round"] == 2]
        gone = [n for n in last if json.loads(lines[n])["trial"] in (8, 10)]
        kept = [line for n, line in enumerate(lines) if n not in gone and n <= last[-1]]
        logs[1].write_text("".join(x for x in kept if json.loads(x)["status"] != "CHOSEN"))
        al.tune(matmul(), log=logs[1], runner=remote, builder=Pretender(), **options)
        assert told(logs[1]) == whole


@pytest.mark.slow
def test_c2d_on_four_devices_finds_what_a_local_run_finds(pool: LocalPool, tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("local.jsonl", "pool.jsonl")]
    best = []
    with RemoteRunner(pool.address) as remote:
        for log, runner in zip(logs, (PretendedRunner(), remote), strict=True):
            task = al.workload("C2D:2")
            found = al.tune(task, 48, log=log, runner=runner, progress=False)
            assert found.best is not None
            best.append((found.best.record.trial, found.best.latency_s))
    assert told(logs[0]) == told(logs[1]) and best[0] == best[1]


# ---- measuring ----------------------------------------------------------------------------------


def test_results_come_back_once_from_all_devices(runner: RemoteRunner) -> None:
    asked = images(40)
    found = dict(runner.run_all("t", asked))
    local = PretendedRunner()
    assert sorted(found) == list(range(40))
    assert {r.device for r in found.values()} == {f"device{k}" for k in range(4)}
    for k, result in found.items():
        assert replace(result, device="") == local.run("t", asked[k])
    assert runner.run("t", asked[0]).latency_s == found[0].latency_s
    assert [r.ok for r in runner.race("t", asked[:2], 0.1)] == [True, True]
    assert runner.peak() is None


def test_no_more_are_begun_when_time_is_up(runner: RemoteRunner) -> None:
    seen: list[int] = []
    for k, _ in runner.run_all("t", images(200), go_on=lambda: len(seen) < 5):
        seen.append(k)
    assert 5 <= len(seen) < 60 and len(set(seen)) == len(seen)
    results = runner.run_all("t", images(50))
    next(results)
    results.close()  # Ctrl-C
    assert runner.run("t", images(1)[0]).ok


def test_at_most_so_many_devices(pool: LocalPool) -> None:
    with RemoteRunner(pool.address, devices=2) as runner:
        runner.prepare("t", mk.check_spec())
        assert len({r.device for _, r in runner.run_all("t", images(30))}) == 2


def test_real_kernels_over_tls(tmp_path: Path) -> None:
    make_pool(tmp_path / "pool")
    device = this_device("own")
    with local_pool(device, cert_dir=tmp_path / "pool") as pool:
        assert pool.address.startswith("tls://")
        with RemoteRunner(pool.address, cert_dir=tmp_path / "pool", timeout_s=0.5) as runner:
            with pytest.raises(MeasureError, match="task t was not prepared"):
                runner.run("t", mk.kernel())
            prepared = runner.prepare("t", mk.check_spec())
            assert prepared.ok and prepared.max_error is not None and prepared.latency_s
            good = runner.run("t", mk.kernel())
            assert good.ok and good.device == "own" and good.max_error is not None
            wrong = runner.run("t", mk.kernel(rows=mk.ROWS - 1))
            assert wrong.status is Status.WRONG_OUTPUT and wrong.device == "own"
            crash = runner.run("t", _spoiled(mk.kernel(), "segfault"))
            assert crash.status is Status.RUN_ERROR and "SIGSEGV" in crash.error
            slow = runner.run("t", _spoiled(mk.kernel(), "endless"))
            assert slow.status is Status.RUN_TIMEOUT and "no answer within 0.5 s" in slow.error
            assert runner.run("t", mk.kernel()).ok
            text = status_text(pool.call(devices_of(pool.pool)), pool.address)
            assert "own" in text and device.target.fingerprint in text

            # A tuner that goes frees the device at once, in the middle of a kernel of a minute.
        with RemoteRunner(pool.address, cert_dir=tmp_path / "pool", timeout_s=60.0) as runner:
            runner.prepare("t", mk.check_spec())
            results = runner.run_all("t", [_spoiled(mk.kernel(), "endless")])
            threading.Thread(target=lambda: list(results), daemon=True).start()
            assert eventually(lambda: device.measuring.startswith("kernel for "))
        assert eventually(lambda: not device.measuring and not device.lock.locked(), 5.0)


# ---- choosing devices ---------------------------------------------------------------------------


def test_targets_are_chosen_by_fingerprint_and_by_cpu(pool: LocalPool) -> None:
    other = Target.cross("aarch64-neon", 4)
    pool.add(PretendedDevice("arm", other))
    own = Target.detect()
    try:
        for target in (own, own.fingerprint, own.cpu):
            with RemoteRunner(pool.address, target) as runner:
                assert runner.target == own
        with RemoteRunner(pool.address, "neoverse-n1") as runner:
            assert runner.target == other
            refused = runner.prepare("t", mk.check_spec())
            assert not refused.ok and "give the task the runner's target" in refused.error
        with pytest.raises(UsageError, match="devices of several kinds: name one as target"):
            RemoteRunner(pool.address)
        with pytest.raises(MachineError, match=r"no device cortex-a76: there are .* \(4\)"):
            RemoteRunner(pool.address, "cortex-a76")
    finally:
        pool.stop("arm")


def test_wrong_arguments(pool: LocalPool) -> None:
    with pytest.raises(UsageError, match="devices is 0"):
        RemoteRunner(pool.address, devices=0)
    with pytest.raises(UsageError, match="give positive numbers"):
        RemoteRunner(pool.address, timeout_s=0)


def test_a_name_is_taken_once(pool: LocalPool) -> None:
    second = Host(PretendedDevice("device0", Target.detect()), pool.pool)

    async def stay() -> None:
        await second.stay(asyncio.Event())

    with pytest.raises(UsageError, match="a device called device0 is in the pool already"):
        pool.call(stay())


# ---- faults -------------------------------------------------------------------------------------


class Deadly(PretendedDevice):
    """Its process dies when it runs one image: connections break without a word."""

    killer = b""
    host: Any = None

    def runner(self, limits: Any) -> Any:
        device = self

        class Runner(PretendedRunner):
            def run(
                self, task_key: str, image: KernelImage, best_latency_s: float | None = None
            ) -> MeasureResult:
                if image.object_bytes == device.killer:
                    for session in list(device.host._sessions):
                        session._comm.abort()
                return super().run(task_key, image, best_latency_s)

        return Runner()


def test_a_candidate_that_kills_two_workers_is_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = images(12)
    devices = [Deadly(f"device{k}", Target.detect(), trial_s=0.01) for k in range(3)]
    with local_pool(*devices) as pool:
        for d in devices:
            d.killer, d.host = asked[3].object_bytes, pool.hosts[d.name]
        caplog.set_level(logging.WARNING, "ansorlite.pool")
        with RemoteRunner(pool.address) as runner:
            runner.prepare("t", mk.check_spec())
            found = dict(runner.run_all("t", asked))
    assert sorted(found) == list(range(12))
    assert [k for k, r in found.items() if not r.ok] == [3]
    assert found[3].status is Status.RUN_ERROR
    assert found[3].error.startswith("it killed 2 workers (device")
    assert "is lost: its process died, or the connection broke" in caplog.text


def test_all_go_on_after_a_restart_of_the_scheduler() -> None:
    with local_pool(*pretended(2, 0.01)) as pool, RemoteRunner(pool.address) as runner:
        runner.prepare("t", mk.check_spec())
        results = runner.run_all("t", images(30))
        found = [next(results) for _ in range(5)]
        pool.restart()
        found += results
        assert sorted(k for k, _ in found) == list(range(30)) and all(r.ok for _, r in found)
        assert eventually(lambda: all(h.joined.is_set() for h in pool.hosts.values()))
        assert eventually(lambda: len(pool.call(devices_of(pool.pool))) == 2)
        assert len({r.device for _, r in runner.run_all("t", images(20))}) == 2


def test_a_drained_device_leaves_and_its_trials_go_to_others() -> None:
    with local_pool(*pretended(2, 0.02)) as pool:
        with pytest.raises(UsageError, match="no device 'rpi': there are device0, device1"):
            pool.call(drain(pool.pool, "rpi"))
        with RemoteRunner(pool.address) as runner:
            runner.prepare("t", mk.check_spec())
            results = runner.run_all("t", images(30))
            found = [next(results) for _ in range(5)]
            assert "device1 leaves" in pool.call(drain(pool.pool, "device1"))
            found += results
        assert sorted(k for k, _ in found) == list(range(30)) and all(r.ok for _, r in found)
        assert {r.device for _, r in found[-10:]} == {"device0"}
        assert eventually(lambda: len(pool.call(devices_of(pool.pool))) == 1)


def test_slower_devices_are_scaled_or_held_back_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    devices = pretended(5, 0.005, slower=[1.1, 2.0])
    with local_pool(*devices) as pool, RemoteRunner(pool.address) as runner:
        caplog.set_level(logging.WARNING, "ansorlite.pool")
        runner.prepare("t", mk.check_spec())
        assert eventually(lambda: runner._dispatcher.width == 5)
        asked = images(40)
        found = dict(runner.run_all("t", asked))
    assert {r.device for r in found.values()} == {"device0", "device2", "device3", "device4"}
    for k, r in found.items():
        assert r.latency_s == pytest.approx(PretendedRunner().run("t", asked[k]).latency_s)
        assert r.times_s == pytest.approx((r.latency_s,))
    assert "device0 differs: its reference kernel is 1.10 times as slow as usual" in caplog.text
    assert "device1 differs: its reference kernel is 2.00 times as slow" in caplog.text


def test_a_device_that_recovers_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ansorlite.pool.links.SUSPECT_S", 0.05)
    monkeypatch.setattr("ansorlite.pool.links.LOOK_S", 0.05)
    devices = pretended(3, 0.002, slower=[2.0])
    caplog.set_level(logging.WARNING, "ansorlite.pool")
    with local_pool(*devices) as pool, RemoteRunner(pool.address) as runner:
        runner.prepare("t", mk.check_spec())
        assert eventually(
            lambda: "device0 differs" in caplog.text and runner._dispatcher.width == 3
        )
        assert {r.device for _, r in runner.run_all("t", images(30))} == {"device1", "device2"}
        monkeypatch.setattr(PretendedRunner, "reference", lambda self: 1e9)
        assert eventually(lambda: "device0 is as fast as usual again" in caplog.text)
        assert "device0" in {r.device for _, r in runner.run_all("t", images(30))}


def test_a_child_that_does_not_start_is_no_fault_of_the_trial(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(PretendedDevice):
        broken = False

        def runner(self, limits: Any) -> Any:
            if self.broken:
                raise MachineError("runner was not ready after 60 s (the last of 3 tries)")
            return super().runner(limits)

    device = Broken("device1", Target.detect(), trial_s=0.002)
    caplog.set_level(logging.WARNING, "ansorlite.pool")
    with local_pool(*pretended(1, 0.002), device) as pool, RemoteRunner(pool.address) as runner:
        device.broken = True
        runner.prepare("t", mk.check_spec())
        assert eventually(lambda: runner._dispatcher.width == 2 or "is lost" in caplog.text)
        found = dict(runner.run_all("t", images(30)))
        assert {(r.device, r.ok) for r in found.values()} == {("device0", True)}
        assert "device1 is lost: runner was not ready after 60 s" in caplog.text
        assert "was not ready" in device.last_error
        text = status_text([{"name": "device1", **device.facts(), **device.state()}], "here")
        assert "device1: the last error was: runner was not ready" in text


def test_a_device_that_cannot_prepare_a_task_is_not_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Small(PretendedDevice):
        def runner(self, limits: Any) -> Any:
            class Runner(PretendedRunner):
                def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult:
                    return PrepareResult(False, "its memory is too small")

                def run(self, *args: Any) -> MeasureResult:
                    raise MeasureError("task t was not prepared: call prepare first")

            return Runner()

    caplog.set_level(logging.WARNING, "ansorlite.pool")
    with local_pool(*pretended(1, 0.002)) as pool, RemoteRunner(pool.address) as runner:
        assert runner.prepare("t", mk.check_spec()).ok
        pool.add(Small("small", Target.detect()))
        assert eventually(lambda: runner._dispatcher.width == 2)
        found = dict(runner.run_all("t", images(30)))
        assert {(r.device, r.ok) for r in found.values()} == {("device0", True)}
        assert "small cannot measure task t: its memory is too small" in caplog.text
        pool.stop("device0")
        alone = runner.run("t", images(1)[0])
        assert alone.status is Status.RUN_ERROR and "memory is too small" in alone.error


def test_another_version_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with local_pool(*pretended(1)) as pool:
        monkeypatch.setattr("ansorlite.__version__", "9.9")
        with pytest.raises(MachineError, match=r"have ansorlite [\d.]+, this is 9\.9: install one"):
            RemoteRunner(pool.address)


def test_a_network_is_tuned_on_a_pool(tmp_path: Path) -> None:
    b = GraphBuilder("small")
    w = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
    product = b.emit("matmul", [b.input("x", (8, 16)), b.constant(w)])
    graph = b.finish([b.emit("relu", [product])])
    log = tmp_path / "log.jsonl"
    with local_pool(*pretended(2, 0.001)) as pool, RemoteRunner(pool.address) as runner:
        module = al.auto_schedule(
            graph, 5, log=log, runner=runner, target=runner.target, policy="random", progress=False
        )
    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    assert np.allclose(module(x), np.maximum(x @ w, 0), 1e-4, 1e-5)
    assert {r.device for r in read_log(log).records} <= {"device0", "device1"}
    assert len(read_log(log).records) == 5


def test_a_device_is_timed_again_and_throttling_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    (device,) = pretended(1)
    assert isinstance(device, PretendedDevice)
    with local_pool(device) as pool, RemoteRunner(pool.address) as runner:
        runner.prepare("t", mk.check_spec())
        (image,) = images(1)
        usual = runner.run("t", image).latency_s
        # The session's runner slows down; the next trial finds it out.
        monkeypatch.setattr(PretendedRunner, "reference", lambda self: 1e9 / 1.2)
        monkeypatch.setattr("ansorlite.pool.device.REFERENCE_S", 0.0)
        slow = runner.run("t", image).latency_s
        assert device.drift == pytest.approx(1.2)
        assert usual is not None and slow == pytest.approx(usual / 1.2)


def test_no_pool_and_an_empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    with local_pool() as pool:
        with pytest.raises(MachineError, match="has no device: start `ansorlite pool worker`"):
            RemoteRunner(pool.address)
        assert status_text([], pool.address).endswith("no device")
    monkeypatch.setattr("ansorlite.pool.wire.CONNECT_S", 0.2)
    with pytest.raises(MachineError, match="cannot connect to tcp://127"):
        RemoteRunner(pool.address)
