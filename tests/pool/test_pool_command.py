"""`ansorlite pool`, and `--on` of tune and tune-op."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("distributed")
pytest.importorskip("cryptography")

from pool_cases import local_pool, pretended

from ansorlite.cli import main
from ansorlite.records import read_log

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def fails(capsys: Captured, *arguments: str) -> str:
    """The one line of an error."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert status in (1, 2) and not out and len(err.splitlines()) == 1
    return err


def test_init_makes_a_bundle_and_says_what_it_means(capsys: Captured, tmp_path: Path) -> None:
    assert main(["pool", "init", str(tmp_path / "p")]) == 0
    out = capsys.readouterr().out
    assert "join.tar" in out and "run each other's code" in out
    assert "has ca.pem already" in fails(capsys, "pool", "init", str(tmp_path / "p"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scheduler", "--host", "0.0.0.0"), "without certificates the scheduler listens on loop"),
        (("scheduler", "--cert-dir", "nowhere"), "nowhere lacks ca.pem"),
        (("worker", "farm:8786"), "another machine"),
        (("worker", "localhost", "--cores", "9999"), "core 9999 may not be used"),
        (("worker", "localhost", "--count", "3"), "give --pretend MS, too"),
        (("worker", "localhost", "--pretend", "1", "--count", "5000"), "at most 1000"),
        (("worker", "localhost", "--pretend", "-1"), "not a number of milliseconds"),
        (("status", "--on", "tls://farm"), "TLS needs the certificates"),
        (("drain",), "the following arguments are required: NAME"),
        (("scheduler", "--port", "65536"), "is no port"),
    ],
)
def test_wrong_usage(capsys: Captured, arguments: tuple[str, ...], words: str) -> None:
    assert words in fails(capsys, "pool", *arguments)


def test_options_that_go_with_a_pool(capsys: Captured) -> None:
    assert "--devices goes with --on" in fails(capsys, "tune-op", "GMM:0", "--devices", "2")
    assert "another machine" in fails(capsys, "tune-op", "GMM:0", "--on", "farm:8786")
    assert "another machine" in fails(capsys, "tune", "resnet18", "--on", "farm:8786")


def test_tune_op_on_a_pool(capsys: Captured, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with local_pool(*pretended(2, 0.001)) as pool:
        where = ["--on", f"127.0.0.1:{pool.port}"]
        budget = ["--trials", "6", "--policy", "random", "-q", "--log", str(log)]
        assert main(["tune-op", "GMM:0", *budget, *where]) == 0
        out = capsys.readouterr().out
        assert re.search(r"measured on device0 \(\d\), device1 \(\d\)$", out.strip())
        assert {r.device for r in read_log(log).records} == {"device0", "device1"}
        for _ in range(50):  # a device tells a moment later that it is free
            assert main(["pool", "status", *where]) == 0
            out = capsys.readouterr().out
            if re.search(r"^device0 .* 1\.00  -$", out, re.MULTILINE):
                break
            time.sleep(0.1)
        assert re.search(r"^device0 .* 1\.00  -$", out, re.MULTILINE) and "2 devices" in out
        assert main(["pool", "drain", "device1", *where]) == 0
        assert "device1 leaves" in capsys.readouterr().out
        assert "has no device nobody" in fails(
            capsys, "tune-op", "GMM:0", "--target", "nobody", *where
        )


def test_without_the_extra() -> None:
    """Python that does not find the library says which extra has it; nothing imports it before."""
    code = (
        "import sys; sys.modules['distributed'] = None\n"
        "import ansorlite\nfrom ansorlite.cli import main\n"
        "assert 'ansorlite.pool' not in sys.modules\n"
        "sys.exit(main(['pool', 'status']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("pip install 'ansorlite[pool]'")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["worker killed", "worker stopped", "network cut", "scheduler killed", "tuner killed"]
)
def test_faults_cost_nothing_but_the_measurement_in_flight(fault: str) -> None:
    import pool_faults

    if fault == "network cut" and not pool_faults.can_cut():
        pytest.skip("no network namespaces here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pool_faults.pool_of(fault, port) as (rig, expected):
        row = pool_faults.once(rig, fault, 0, expected)
    assert not any(row[c] for c in pool_faults.COUNTS), row
