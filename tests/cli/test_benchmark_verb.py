"""`ravnest benchmark` as people run it, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app
from ravnest.config import load_node_configs
from ravnest.probing.listener import ProbeListener

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from ravnest.cli.main import app; app()", "benchmark"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ravnest(tmp_path: Path) -> Run:
    """Runs the verb in the folder of the test."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return run


def test_a_node_is_measured_and_written(ravnest: Run, tmp_path: Path) -> None:
    port = free_port()
    with ProbeListener("127.0.0.1:0") as listener:
        finished = ravnest(
            *("--node", "3", "--address", f"127.0.0.1:{port}", "--seconds", "0.2", "--json"),
            *("--peer", f"127.0.0.1:{listener.port}", "--peer", f"0.0.0.0:{listener.port}"),
        )
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    (node,) = load_node_configs(tmp_path / "node_data" / "node_configs.json")
    fields = report["entry"]["benchmarks"]
    assert report["written"]
    assert (node.node_id, node.address, node.device) == (3, f"127.0.0.1:{port}", "cpu")
    assert (
        fields["ram"]
        == node.ram_gb
        == pytest.approx(report["memory"]["offered_bytes"] * 1e-9, rel=1e-3)
    )
    assert (
        fields["flops"]
        == node.flops_gflops
        == pytest.approx(report["compute"]["flops"] * 1e-9, rel=1e-3)
    )
    slowest = min(link["bandwidth_bps"] for link in report["links"])
    longest = max(link["one_way_s"] for link in report["links"])
    assert fields["bandwidth"] == node.bandwidth_mbps == pytest.approx(slowest * 1e-6, rel=1e-3)
    assert fields["latency"] == node.latency_ms == pytest.approx(longest / 2 * 1e3, rel=1e-3)


def test_a_dry_run_for_people_keeps_what_is_not_measured(ravnest: Run, tmp_path: Path) -> None:
    text = '{"0": {"IP": "127.0.0.1:80", "benchmarks": {"ram": 4, "bandwidth": 33}} // mine\n}'
    (tmp_path / "nodes.json").write_text(text)
    finished = ravnest("--node", "0", "--node-configs", "nodes.json", "--ram", "7", "--dry-run")
    assert finished.returncode == 0, finished.stderr
    for words in ("GFLOP/s in float32", "GB free", "ram 7 GB", "bandwidth 33 Mbps", "not written"):
        assert words in finished.stdout
    entry = json.loads("{" + finished.stdout.strip().splitlines()[-1] + "}")["0"]
    assert entry["benchmarks"].keys() == {"ram", "bandwidth", "flops", "device"}
    assert (tmp_path / "nodes.json").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--node"),
        (["--node", "-1"], 2, "--node"),
        (["--node", "0", "--for", "3"], 2, "--for"),
        (["--listen"], 2, "--address HOST:PORT, or --node"),
        (["--listen", "--address", "127.0.0.1:80", "--dry-run"], 2, "measures nothing"),
        (["--node", "0"], 1, "no address is given"),
        (["--node", "0", "--address", "127.0.0.1:80"], 1, "there is no peer to measure it against"),
        (
            ["--node", "0", "--address", "nowhere", "--bandwidth", "9"],
            1,
            "not of the form host:port",
        ),
        (["--node", "0", "--dtype", "int8"], 1, "dtype is 'int8'"),
        (["--node", "0", "--device", "my gpu"], 1, "device is 'my gpu'"),
        (["--listen", "--node", "0"], 1, "has no node 0"),
        (["--listen", "--address", "nowhere"], 1, "address 'nowhere'"),
        (["--listen", "--address", "203.0.113.5:80"], 1, "0.0.0.0:80 is not loopback"),
    ],
)
def test_bad_arguments_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["benchmark", *arguments])
    assert result.exit_code == code
    output = f"{result.output} {result.exception}"
    assert words in " ".join(output.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_is_away_leaves_the_file(ravnest: Run, tmp_path: Path) -> None:
    text = '{"0": {"IP": "127.0.0.1:80", "benchmarks": {"ram": 4, "bandwidth": 33}}}'
    (tmp_path / "nodes.json").write_text(text)
    port = free_port()
    finished = ravnest("--node", "0", "--node-configs", "nodes.json", "--peer", f"127.0.0.1:{port}")
    assert finished.returncode == 1
    assert f"127.0.0.1:{port} cannot be reached: connection refused" in finished.stderr
    assert (tmp_path / "nodes.json").read_text() == text


def test_listening_ends_after_its_time(ravnest: Run) -> None:
    port = free_port()
    finished = ravnest("--listen", "--address", f"127.0.0.1:{port}", "--for", "0.2", "--json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == {"bind": f"127.0.0.1:{port}", "num_probes": 0}


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_listening_ends_on_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    arguments = ["--listen", "--address", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "listening for probes" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert "answered 0 probes" in process.stdout.read()


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom ravnest.cli.main import app\n"
        "result = CliRunner().invoke(app, ['benchmark', '--help'])\n"
        "assert result.exit_code == 0 and 'torch' not in sys.modules, result.output"
    )
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True, timeout=60)
