# Sourced by other scripts. Creates .venv and installs the package with the versions of
# constraints.txt; does nothing while pyproject.toml and constraints.txt are unchanged.
# In: the variable extras, names of optional dependencies ("onnx,dev").
# Out: the variable PYTHON, the path of the environment's interpreter.
set -eu
cd "$(dirname "$0")/.."
python=""
for candidate in python3.13 python3.12 python3.11 python3; do
  if command -v "$candidate" >/dev/null 2>&1 &&
     "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python="$candidate"
    break
  fi
done
if [ -z "$python" ]; then
  echo "ansorlite needs Python 3.11 or newer on the PATH" >&2
  exit 1
fi
stamp=".venv/installed-$extras"
if [ ! -f "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ scripts/constraints.txt -nt "$stamp" ]; then
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint scripts/constraints.txt --editable ".[$extras]"
  touch "$stamp"
fi
PYTHON="$PWD/.venv/bin/python"
# Every run starts processes; where Python may not write bytecode itself, each would compile anew.
"$PYTHON" -m compileall -q ansorlite
