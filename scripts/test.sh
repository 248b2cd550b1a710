#!/bin/sh
# Sets up .venv if needed, then runs ruff, mypy and the default tier of the tests: four minutes on two
# idle cores. Further arguments go to pytest: `sh scripts/test.sh -m slow` runs thousands of random
# cases. Tests of PyTorch modules run where torch is: `.venv/bin/pip install -e '.[torch]'`.
extras=dev
. "$(dirname "$0")/setup.sh"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy ansorlite scripts/bench
case " $* " in
  *" slow "*) echo "The slow tier takes about half an hour on two idle cores." ;;
esac
# Tests of a file mostly run one after the other in one process, where they share what is costly.
exec "$PYTHON" -m pytest -n auto --maxprocesses 4 --dist worksteal "$@"
