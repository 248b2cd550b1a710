#!/bin/sh
# Installs the package into .venv if needed, auto-schedules ResNet-18 for about two minutes and runs
# the tuned network on a picture (output: see scripts/demo.py). A second run continues from the log
# of the first.
extras=onnx
. "$(dirname "$0")/setup.sh"
exec "$PYTHON" scripts/demo.py "$@"
