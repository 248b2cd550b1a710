"""Every script of scripts/examples runs, in a process of its own, and prints what it promises."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples"
QUICK = Path(__file__).parents[1] / "quick_script.py"  # kernels are timed briefly
MAX_LINES = 60
# File, modules and programs that the example needs, a piece of what it prints.
NEEDS = (
    ("01_tune_an_operator.py", (), "the kernel agrees with numpy"),
    ("02_auto_schedule_onnx.py", ("onnx",), "agrees with onnx's reference"),
    ("03_read_a_log.py", ("matplotlib",), "4 trials, {'OK': 4}"),
    ("04_custom_sketch_rule.py", (), "programs are of the new rule"),
    ("05_template_against_ansor.py", (), "6 of 6 programs right"),
    ("06_deploy_to_c.py", ("cc",), "C, al.load_module and the module agree"),
)


@pytest.mark.parametrize(("name", "needs", "printed"), NEEDS, ids=[n[:2] for n, _, _ in NEEDS])
def test_example(name: str, needs: tuple[str, ...], printed: str, tmp_path: Path) -> None:
    for need in needs:
        if find_spec(need) is None and shutil.which(need) is None:
            pytest.skip(f"the example needs {need}")
    env = {k: v for k, v in os.environ.items() if not k.startswith("ANSORLITE_")}
    ran = subprocess.run(
        [sys.executable, QUICK, EXAMPLES / name],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert printed in ran.stdout
    assert not list(tmp_path.iterdir()), "an example leaves no file behind"


def test_every_example_is_tested_and_short() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert [f.name for f in files] == [name for name, _, _ in NEEDS]
    lengths = {f.name: len(f.read_text(encoding="utf-8").splitlines()) for f in files}
    assert all(n < MAX_LINES for n in lengths.values()), lengths
