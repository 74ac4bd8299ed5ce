"""Imports torch and nothing else that is large; prints this process's peak memory to a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from examples.digits.memory import peak_memory_bytes

if __name__ == "__main__":
    torch.zeros(1)
    Path(sys.argv[1]).write_text(json.dumps(peak_memory_bytes()))
