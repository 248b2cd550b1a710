#!/bin/sh
# Sets up .venv if needed, then runs ruff, mypy and the default tier of the tests (a few minutes).
# Further arguments go to pytest: `sh scripts/test.sh -m slow` runs thousands of random cases.
extras=dev
. "$(dirname "$0")/setup.sh"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy ansorlite scripts/bench
exec "$PYTHON" -m pytest -n auto --maxprocesses 4 "$@"
