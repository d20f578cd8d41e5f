#!/usr/bin/env bash
# Every GPU table of docs/performance.md, in one call under 10 minutes; needs a GPU, Python, torch, timm and this
# checkout (with SciPy also TokenMixup's horizontal part). Results go to benchmarks/results, or to the folder named: benchmarks/run_gpu.sh --out DIR
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
