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
# Many tests wait for processes, so there is one worker more than processors, at most five. Tests of a
# file mostly run one after the other in one worker, where they share what is costly.
workers=$(( $(getconf _NPROCESSORS_ONLN) + 1 ))
[ "$workers" -le 5 ] || workers=5
exec "$PYTHON" -m pytest -n "$workers" --dist worksteal "$@"
