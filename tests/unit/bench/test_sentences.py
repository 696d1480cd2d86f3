"""The list of what users read names each sentence once, in the group of its place, and nothing else."""

import pytest

from bench import sentences

CODE = '''
"""A docstring is not shown to users."""
PHRASE = "a node has left the domain"
WORD = "topology.kubernetes.io/zone"

def work(left):
    """Neither is this docstring ever shown."""
    log.warning("the Lease was not renewed", extra={"lease": "a key of few"})
    text = "a Reservation was not written"
    log.info(text)
    parser.add_argument("--wait", help="seconds to wait for pods")
    _gauge("serried_left", "Number of nodes that have left.")
    raise ValueError(f"{left} nodes have left " + f"domain {left[0]}")
'''

HELP = '''
def show(*, target: Target):
    """Show why the gang waits."""

def draw(target: Target):
    """Return the lines of a table."""
'''

SETTINGS = '''
class Settings:
    """Class docstrings are not shown."""
    wait: float
    """longest wait for a pod"""
'''


def find(code: str, path: str) -> list[tuple[str, int, str]]:
    return [(each.group, each.line, each.text) for each in sentences.find_sentences(code, path)]


def test_each_sentence_is_in_the_group_of_its_place() -> None:
    assert find(CODE, "extender/some.py") == [
        ("other", 3, "a node has left the domain"),
        ("log", 8, "the Lease was not renewed"),
        ("log", 8, "a key of few"),
        ("log", 9, "a Reservation was not written"),
        ("flag", 11, "seconds to wait for pods"),
        ("metric", 12, "Number of nodes that have left."),
        ("error", 13, "{left} nodes have left domain {left[0]}"),
    ]


@pytest.mark.parametrize(
    ("path", "group"),
    {
        "serried/api/verdict.py": "reason",
        "controller/diff/sentences.py": "event",
        "extender/features/status/levels.py": "event",
        "cli/top.py": "command",
        "client/top.py": "other",
    }.items(),
)
def test_a_file_or_folder_has_a_group_for_its_strings(path: str, group: str) -> None:
    assert find('PHRASE = "a node has left"', path) == [(group, 1, "a node has left")]


def test_docstrings_that_are_texts_of_help_are_sentences_of_flags() -> None:
    assert find(HELP, "cli/show.py") == [("flag", 3, "Show why the gang waits.")]
    assert find(SETTINGS, sentences.FLAGS) == [("flag", 5, "longest wait for a pod")]


def test_each_value_of_the_chart_is_listed_with_its_line() -> None:
    text = "# a comment\na.b:\n  about: Number of\n    pods.\nc:\n  about: Image.\n"
    found = [(each.line, each.text) for each in sentences.find_values(text, "values.yaml")]
    assert found == [(2, "a.b: Number of pods."), (5, "c: Image.")]


def test_the_list_of_the_product_has_all_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert {each.group for each in sentences.list_sentences()} == set(sentences.GROUPS)
    sentences.main(["value"])
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {"value"}
