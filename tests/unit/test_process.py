import resource
import subprocess
import sys

_PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
from serried.ops.process import raise_file_limit
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_process_may_open_as_many_files_as_its_container_allows() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= 4096
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["4096", "4096"]
