"""CPU seconds, as read from /proc."""

import os
from pathlib import Path

from bench.load.usage import Usage, read_usage


def write_proc(proc: Path, busy: int, name: str = "odd) name (", stolen: int = 0) -> None:
    (proc / "7").mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 9999 5 0 0 {stolen} 0 0\ncpu0 1 1 1 1 1 1 1\n")
    (proc / "7" / "stat").write_text(f"7 ({name}) S 1 7 7 0 -1 0 0 0 0 0 {busy // 2} 0 0 0 20 0 1 0 500 0 0\n")


def test_foreign_work_is_what_no_name_has_spent(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    write_proc(tmp_path, 2 * tick)
    before = read_usage({"etcd": 7}, tmp_path)
    write_proc(tmp_path, 8 * tick)

    spent = read_usage({"etcd": 7}, tmp_path).since(before)

    assert spent == Usage({"etcd": 3.0}, 6.0)
    assert spent.others == 3.0


def test_what_the_host_gives_to_other_machines_is_foreign_work(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    write_proc(tmp_path, 2 * tick)
    before = read_usage({"etcd": 7}, tmp_path)
    write_proc(tmp_path, 4 * tick, stolen=5 * tick)

    assert read_usage({"etcd": 7}, tmp_path).since(before).others == 6.0


def test_a_process_that_has_ended_counts_as_nothing(tmp_path: Path) -> None:
    write_proc(tmp_path, 100)

    assert read_usage({"gone": 8}, tmp_path).by_name == {"gone": 0.0}
