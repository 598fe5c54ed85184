from __future__ import annotations

import json
from pathlib import Path

import pytest

from omlx.cli.stage.processes import Host, Hosts, read_hosts
from omlx.errors import ConfigError

MACS = {
    "backend": "jaccl",
    "envs": ["MLX_METAL_FAST_SYNCH=1"],
    "hosts": [
        {"ssh": "mac1", "ips": ["10.0.0.1"], "rdma": [None, "rdma_en2"]},
        {"ssh": "mac2", "ips": ["10.0.0.2"], "rdma": ["rdma_en2", None]},
    ],
}


def written(folder: Path, content: object) -> str:
    path = folder / "macs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_list_of_addresses() -> None:
    hosts = read_hosts("127.0.0.1, 127.0.0.1")
    assert hosts == Hosts([Host("127.0.0.1", ["127.0.0.1"])] * 2)
    assert all(host.local for host in hosts.hosts)


def test_a_hostfile_of_mlx(tmp_path: Path) -> None:
    hosts = read_hosts(written(tmp_path, MACS))
    assert (hosts.backend, hosts.envs) == ("jaccl", ["MLX_METAL_FAST_SYNCH=1"])
    assert hosts.hosts[1] == Host("mac2", ["10.0.0.2"], ["rdma_en2", None])
    assert not hosts.hosts[0].local


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "not JSON"),
        ({"backend": "ring"}, "hosts"),
        ("3", "macs.json"),
        ({"hosts": [{"ips": ["10.0.0.1"]}]}, "hosts.0.ssh: Field required"),
        ({"hosts": [{"ssh": "", "ips": ["10.0.0.1"]}]}, "hosts.0.ssh"),
        ({"hosts": [{"ssh": "a", "ips": "10.0.0.1"}]}, "hosts.0.ips: Input should be a valid list"),
        ({**MACS, "backend": "mpi"}, "backend: Input should be 'ring' or 'jaccl'"),
        ({**MACS, "envs": {"A": "1"}}, "envs: Input should be a valid list"),
        ({**MACS, "envs": ["A"]}, "envs.0"),
        ({**MACS, "hosts": MACS["hosts"][:1]}, "two hosts"),
        ([{"ssh": "a", "ips": ["0.0.0.0"]}, {"ssh": "b", "ips": ["10.0.0.2"]}], "0.0.0.0"),
        ([{"ssh": "a", "ips": ["127.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.2"]}], "loopback"),
    ],
)
def test_mistakes_are_named(content: object, part: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_hosts(written(tmp_path, content))
    assert part in refusal.value.message


def test_what_is_empty_has_its_default(tmp_path: Path) -> None:
    content = {**MACS, "backend": "", "envs": None}
    assert read_hosts(written(tmp_path, content)).backend == "ring"


def test_a_missing_hostfile_is_named() -> None:
    with pytest.raises(ConfigError) as refusal:
        read_hosts("nowhere/macs.json")
    assert "nowhere/macs.json" in refusal.value.message
