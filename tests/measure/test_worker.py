"""Worker: the owner gets a reply for every failure of the child, and no process is left behind."""

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from measure_processes import alive, eventually, read_pids, start_script

from ansorlite.errors import AnsorliteError, MachineError
from ansorlite.measure.worker import Worker

LONG_S = 60.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker("measure_entries:obey", name="test worker") as w:
        yield w


def pid_of(worker: Worker) -> int:
    pid = worker.call(("pid", None), LONG_S).value
    assert isinstance(pid, int)
    return pid


def test_values_come_back(worker: Worker) -> None:
    big = b"x" * 5_000_000
    assert worker.call(("echo", {"a": (1, None)}), LONG_S).value == {"a": (1, None)}
    assert worker.call(("echo", big), LONG_S).value == big
    assert worker.call(("count", None), LONG_S).value == 3


def test_an_exception_is_a_reply_and_the_child_lives_on(worker: Worker) -> None:
    before = pid_of(worker)
    reply = worker.call(("raise", "seven"), LONG_S)
    assert (reply.kind, reply.value) == ("error", None)
    assert reply.error.startswith("ValueError: seven (measure_entries.py:")
    assert worker.call(("exit", 3), LONG_S).error.startswith("SystemExit: 3")
    assert worker.call(("lambda", 3), LONG_S).kind == "error"
    assert pid_of(worker) == before


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (("crash", None), "killed by SIGSEGV"),
        (("print and crash", "LLVM ERROR: odd"), "killed by SIGABRT; it printed: LLVM ERROR: odd"),
        (("leave", 7), "exited with status 7"),
    ],
)
def test_a_crash_is_a_reply_with_its_cause(
    worker: Worker, request_: tuple[str, object], text: str
) -> None:
    before = pid_of(worker)
    reply = worker.call(request_, LONG_S)
    assert (reply.kind, reply.error) == ("crash", text)
    assert pid_of(worker) != before and not alive(before)
    assert worker.generation == 2


@pytest.mark.parametrize("how", [("sleep", 1000), ("hang in C", None)])
def test_a_hang_is_killed_in_time_and_replaced(worker: Worker, how: tuple[str, object]) -> None:
    before = pid_of(worker)
    reply = worker.call(how, 0.3)
    assert reply.kind == "timeout" and reply.error == "no answer within 0.3 s"
    assert reply.seconds >= 0.3
    assert not alive(before) and pid_of(worker) != before


def test_the_start_does_not_count_against_the_first_request() -> None:
    with Worker("measure_entries:obey") as w:
        w.await_idle()
        assert w.deadline is None
        ready = time.monotonic()
        w.submit(("echo", 1), LONG_S)
        assert w.deadline is not None and w.deadline >= ready + LONG_S


def test_a_hang_takes_its_own_children_with_it(worker: Worker, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    worker.await_idle()
    worker.submit(("start a child and hang", str(note)), LONG_S)
    assert eventually(lambda: note.exists() and note.read_text() != "")
    worker.deadline = time.monotonic()
    reply = worker.poll()
    assert reply is not None and reply.kind == "timeout"
    assert eventually(lambda: not alive(int(note.read_text())))


def test_printed_text_goes_to_the_log_of_the_child(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    assert worker.call(("print", "hello"), LONG_S).kind == "value"
    assert capfd.readouterr() == ("", "")
    reply = worker.call(("print and crash", "x" * 10_000), LONG_S)
    assert "hello" not in reply.error and 1900 < len(reply.error) < 2200


def test_a_child_that_dies_while_idle_is_replaced_silently(worker: Worker) -> None:
    before = pid_of(worker)
    os.kill(before, signal.SIGKILL)
    assert wait([worker.fileno()], LONG_S)
    assert worker.call(("echo", 5), LONG_S).value == 5


def test_a_paused_child_goes_on_where_it_was(worker: Worker) -> None:
    pid = pid_of(worker)
    worker.submit(("echo", b"x"), LONG_S)
    worker.pause()
    state = Path(f"/proc/{pid}/stat")
    if state.exists():
        assert eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
    worker.resume()
    while (reply := worker.poll()) is None:
        wait([worker.fileno()], 1.0)
    assert reply.value == b"x"
    assert pid_of(worker) == pid


def test_recycled_after_max_tasks() -> None:
    with Worker("measure_entries:obey", max_tasks=2) as w:
        assert [w.call(("count", None), LONG_S).value for _ in range(5)] == [1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    ("entry", "args", "text"),
    [
        ("measure_entries:refuse", ("no disk",), "cannot start: ValueError: no disk"),
        ("measure_entries:die_at_start", (), "killed by SIGABRT; it printed: no luck today"),
        ("measure_entries:nothing", (), "names no function"),
        ("no_such_module_here:f", (), "No module named 'no_such_module_here'"),
    ],
)
def test_a_child_that_cannot_start_is_an_error(
    entry: str, args: tuple[str, ...], text: str
) -> None:
    with Worker(entry, args, name="odd worker") as w, pytest.raises(AnsorliteError, match=text):
        w.call(1, LONG_S)


def test_a_start_that_hangs_is_an_error() -> None:
    w = Worker("measure_entries:never_ready", start_timeout_s=0.5)
    with w, pytest.raises(MachineError, match=r"not ready after 0\.5 s.*last of 3 tries"):
        w.call(1, LONG_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSTOP])
def test_a_child_that_is_killed_or_stopped_while_it_starts_is_replaced(
    tmp_path: Path, number: int
) -> None:
    notes = tmp_path / "starts"
    with Worker("measure_entries:signalled_at_start", (str(notes), 2, number)) as w:
        assert w.call(("echo", 7), LONG_S).value == 7
        assert w.generation == 3
        first, second, third = map(int, notes.read_text().split())
        assert not alive(first) and not alive(second) and alive(third)


def test_several_failed_starts_in_a_row_are_an_error_with_the_childs_words(tmp_path: Path) -> None:
    notes = tmp_path / "starts"
    w = Worker("measure_entries:signalled_at_start", (str(notes), 99, signal.SIGKILL), name="w")
    with w:
        text = "w cannot start: killed by SIGKILL; it printed: not this time .*last of 3 tries"
        with pytest.raises(MachineError, match=text):
            w.call(("echo", 7), LONG_S)
        assert len(notes.read_text().split()) == 3
        assert not any(alive(int(pid)) for pid in notes.read_text().split())
        with pytest.raises(MachineError, match="cannot start"):  # and may be tried again
            w.call(("echo", 7), LONG_S)


def test_a_start_that_succeeds_ends_the_row(worker: Worker) -> None:
    for _ in range(5):
        worker.close()
        worker.start()
        assert worker._child is not None
        worker._child.process.kill()
        assert worker.call(("echo", 1), LONG_S).value == 1


@pytest.mark.parametrize(
    ("number", "outside"),
    [
        (signal.SIGKILL, True),
        (signal.SIGTERM, True),
        (signal.SIGHUP, True),
        (signal.SIGSEGV, False),
        (signal.SIGABRT, False),
        (signal.SIGSTOP, True),
    ],
)
def test_a_reply_distinguishes_crashes_from_kills(
    worker: Worker, tmp_path: Path, number: int, outside: bool
) -> None:
    request = ("signal me once", (str(tmp_path / "note"), number))
    reply = worker.call(request, 1.0)
    assert (reply.kind in ("crash", "timeout"), reply.outside) == (True, outside)
    assert ("a signal stopped it" in reply.error) == (number == signal.SIGSTOP)


def test_closed_standard_streams_of_the_owner() -> None:
    """Sockets and files that get their descriptors stay apart from the child's own streams."""
    code = (
        "import os\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "from ansorlite.measure.worker import Worker\n"
        "with Worker('measure_entries:obey') as w:\n"
        "    found = w.call(('print', 'hello'), 60), w.call(('echo', 3), 60)\n"
        "    crash = w.call(('print and crash', 'odd'), 60)\n"
        "os._exit(0 if found[1].value == 3 and 'odd' in crash.error else 1)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, timeout=120).returncode == 0


@pytest.mark.parametrize(
    ("kind", "least", "advice"),
    [(resource.RLIMIT_NOFILE, 24, "ulimit -n"), (resource.RLIMIT_NPROC, 0, "ulimit -u")],
)
def test_limits_of_the_system_are_named(kind: int, least: int, advice: str) -> None:
    if kind == resource.RLIMIT_NPROC and os.geteuid() == 0:
        pytest.skip("root may start as many processes as it likes")
    code = (
        "import resource, sys\n"
        "from ansorlite.errors import MachineError\n"
        "from ansorlite.measure.worker import Worker\n"
        f"resource.setrlimit({kind}, ({least}, {least}))\n"
        "workers = [Worker('measure_entries:obey') for _ in range(99)]\n"
        "try:\n"
        "    for w in workers: w.start()\n"
        "except MachineError as error:\n"
        "    print(error)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, timeout=120, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("cannot start worker: ") and advice in run.stdout


def test_an_interrupted_call_leaves_no_stale_answer(worker: Worker) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before, old = pid_of(worker), signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            worker.call(("sleep", 1000), LONG_S)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert not alive(before)
    assert worker.call(("echo", "fresh"), LONG_S).value == "fresh"


def test_ctrl_c_does_not_end_the_child(worker: Worker) -> None:
    before = pid_of(worker)
    os.kill(before, signal.SIGINT)
    os.killpg(before, signal.SIGINT)
    assert pid_of(worker) == before


def test_close_and_garbage_collection_kill_the_child() -> None:
    w = Worker("measure_entries:obey")
    closed = pid_of(w)
    w.close()
    w.close()
    assert not alive(closed)
    dropped = pid_of(w)
    del w
    gc.collect()
    assert not alive(dropped)


def test_a_fork_of_the_owner_does_not_kill_the_child(worker: Worker) -> None:
    before = pid_of(worker)
    if (pid := os.fork()) == 0:
        worker.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert pid_of(worker) == before


def test_outlives_the_thread_that_started_it() -> None:
    w = Worker("measure_entries:obey")
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(pid_of(w)))
    thread.start()
    thread.join()
    with w:
        assert pid_of(w) == pids[0]


def test_neither_main_nor_anything_heavy_is_imported(worker: Worker) -> None:
    modules = worker.call(("modules", None), LONG_S).value
    assert "__mp_main__" not in modules
    assert not {"numpy", "llvmlite", "lightgbm", "networkx", "onnx", "tqdm"} & set(modules)


def test_a_killed_parent_leaves_no_process() -> None:
    """SIGKILL: one child idle, one in Python, one stuck in C with the lock, one still starting."""
    process = start_script("""
        import threading, time
        from ansorlite.measure.worker import Worker
        workers = [Worker("measure_entries:obey") for _ in range(4)]
        idle, slow, stuck, other = [w.call(("pid", None), 60).value for w in workers]
        workers[1].submit(("sleep", 1000), 1000)
        workers[2].submit(("hang in C", None), 1000)
        workers[3].close()
        workers[3].start()
        print(idle, slow, stuck, workers[3]._child.process.pid, flush=True)
        time.sleep(1000)
    """)
    pids = read_pids(process)
    assert len(pids) == 4
    process.kill()
    process.wait()
    assert eventually(lambda: not any(map(alive, pids))), [p for p in pids if alive(p)]


def test_a_killed_parent_leaves_no_process_that_a_thread_started() -> None:
    process = start_script("""
        import threading, time
        from ansorlite.measure.worker import Worker
        w = Worker("measure_entries:obey")
        pids = []
        def begin():
            pids.append(w.call(("pid", None), 60).value)
            w.submit(("sleep", 1000), 1000)
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        print(*pids, flush=True)
        time.sleep(1000)
    """)
    (pid,) = read_pids(process)
    assert alive(pid)
    process.kill()
    process.wait()
    assert eventually(lambda: not alive(pid))


def test_ctrl_c_reaches_the_parent_first_and_everything_ends_with_it() -> None:
    """SIGINT to the whole process group, as a terminal does it: the worker answers afterwards."""
    process = start_script("""
        import os, time
        from ansorlite.measure.worker import Worker
        w = Worker("measure_entries:obey")
        before = w.call(("pid", None), 60).value
        try:
            print(before, flush=True)
            time.sleep(1000)
        except KeyboardInterrupt:
            print(w.call(("pid", None), 60).value, flush=True)
    """)
    (before,) = read_pids(process)
    os.killpg(process.pid, signal.SIGINT)
    assert read_pids(process) == [before]
    assert process.wait() == 0
    assert eventually(lambda: not alive(before))
