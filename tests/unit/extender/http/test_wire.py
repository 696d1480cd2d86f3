"""The bytes of the extender protocol: goldens in the form that Go's encoding/json sends, PascalCase and nulls."""

import orjson
import pytest

from extender.core.protocol import (
    BadRequest,
    BindRequest,
    Candidate,
    Hold,
    Narrow,
    Pass,
    Steer,
    read_args,
    read_bind,
    read_preemption,
    write_error,
    write_filter,
    write_preemption,
    write_scores,
)
from serried.api.names import Key
from serried.api.pod import HELD, KEPT
from tests.support.builders import pod

POD = (
    b'{"metadata":{"name":"p","namespace":"default","uid":"u","creationTimestamp":null},'
    b'"spec":{"containers":[{"name":"main","image":"i","resources":{"requests":{"cpu":"1"}}}],'
    b'"schedulerName":"serried"},"status":{"phase":"Pending"}}'
)
ARGS = b'{"Pod":' + POD + b',"Nodes":null,"NodeNames":["n1","n2"]}'
BIND = b'{"PodName":"p","PodNamespace":"default","PodUID":"u","Node":"n1"}'
PREEMPTION = (
    b'{"Pod":' + POD + b',"NodeNameToVictims":null,'
    b'"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"a"},{"UID":"b"}],"NumPDBViolations":1},"n2":{"Pods":[],"NumPDBViolations":0}}}'
)


class TestReading:
    def test_filter_and_prioritize_arguments(self) -> None:
        args = read_args(ARGS)
        assert (args.pod.uid, args.pod.scheduler, args.names) == ("u", "serried", ["n1", "n2"])
        assert dict(args.pod.shape.requests) == {"cpu": 1000, "pods": 1}

    def test_a_pod_that_the_watch_has_shown_is_not_read_again(self) -> None:
        known = pod("p").value()
        assert read_args(ARGS, {"u": known}).pod is known
        assert read_preemption(PREEMPTION, {"u": known}).pod is known

    def test_unless_the_scheduler_knows_of_a_nomination_that_the_watch_has_not_shown(self) -> None:
        assert read_args(ARGS, {"u": pod("p").nominated("n1").value()}).pod.nominated == ""

    def test_binding_arguments(self) -> None:
        assert read_bind(BIND) == BindRequest(Key("default", "p"), "u", "n1")

    def test_preemption_arguments_with_uids_only(self) -> None:
        args = read_preemption(PREEMPTION)
        assert args.candidates == [Candidate("n1", ("a", "b"), 1), Candidate("n2", ())]

    def test_preemption_arguments_with_whole_pods(self) -> None:
        whole = b'{"Pod":' + POD + b',"NodeNameToMetaVictims":null,"NodeNameToVictims":{"n1":{"Pods":[' + POD + b"]}}}"
        assert read_preemption(whole).candidates == [Candidate("n1", ("u",))]

    def test_preemption_arguments_without_candidates(self) -> None:
        assert read_preemption(b'{"Pod":' + POD + b"}").candidates == []

    @pytest.mark.parametrize(
        ("body", "sentence"),
        [
            pytest.param(b"", "not JSON", id="no body"),
            pytest.param(b"[]", "must be a JSON object", id="a list"),
            pytest.param(b"\xff\xfe", "not JSON", id="not UTF-8"),
            pytest.param(b"[" * 100_000, "not JSON", id="nested too deeply"),
            pytest.param(b'{"NodeNames":["n1"]}', "Pod must be an object", id="no pod"),
            pytest.param(b'{"Pod":{},"NodeNames":["n1"]}', "Pod cannot be read", id="an empty pod"),
            pytest.param(b'{"Pod":' + POD + b"}", "nodeCacheCapable", id="no node names: says which setting is wrong"),
            pytest.param(b'{"Pod":' + POD + b',"Nodes":{"items":[]}}', "nodeCacheCapable", id="whole nodes"),
            pytest.param(b'{"Pod":' + POD + b',"NodeNames":"n1"}', "list of strings", id="names that are no list"),
            pytest.param(b'{"Pod":' + POD + b',"NodeNames":[1]}', "list of strings", id="names that are no strings"),
        ],
    )
    def test_other_filter_arguments_are_refused_with_the_reason(self, body: bytes, sentence: str) -> None:
        with pytest.raises(BadRequest, match=sentence):
            read_args(body)

    @pytest.mark.parametrize("name", ["PodName", "PodNamespace", "PodUID", "Node"])
    @pytest.mark.parametrize("value", [None, "", 1, ["x"]])
    def test_binding_arguments_must_be_strings(self, name: str, value: object) -> None:
        body = orjson.dumps({**orjson.loads(BIND), name: value})
        with pytest.raises(BadRequest, match=f"{name} must be a non-empty string"):
            read_bind(body)

    @pytest.mark.parametrize(
        "candidate",
        [
            b"1",
            b'"x"',
            b'{"Pods":1}',
            b'{"Pods":["x"]}',
            b'{"Pods":[{}]}',
            b'{"Pods":[],"NumPDBViolations":"x"}',
            b'{"Pods":[],"NumPDBViolations":[]}',
            b'{"Pods":[],"NumPDBViolations":1e30}',
        ],
    )
    def test_victims_that_cannot_be_read_are_refused_with_their_node(self, candidate: bytes) -> None:
        with pytest.raises(BadRequest, match="n1"):
            read_preemption(b'{"Pod":' + POD + b',"NodeNameToMetaVictims":{"n1":' + candidate + b"}}")


class TestWriting:
    def test_a_pass_names_all_nodes(self) -> None:
        assert write_filter(Pass(), read_args(ARGS)) == b'{"NodeNames":["n1","n2"]}'

    def test_a_steer_names_one(self) -> None:
        assert write_filter(Steer("n2"), read_args(ARGS)) == b'{"NodeNames":["n2"]}'

    def test_a_hold_names_none_and_gives_its_reason_once_as_unresolvable(self) -> None:
        text = f"{HELD}: job/train"
        written = orjson.loads(write_filter(Hold(text), read_args(ARGS)))
        assert written == {"NodeNames": [], "FailedAndUnresolvableNodes": {"n1": text}}

    def test_what_is_left_beside_kept_nodes_is_named_and_if_it_is_none_the_reason_is(self) -> None:
        args = read_args(ARGS)
        assert orjson.loads(write_filter(Narrow(args.names[1:]), args)) == {"NodeNames": args.names[1:]}
        written = orjson.loads(write_filter(Narrow([]), args))
        assert written == {"NodeNames": [], "FailedAndUnresolvableNodes": {args.names[0]: KEPT}}

    def test_errors_and_success_of_a_binding(self) -> None:
        assert write_error("no") == b'{"Error":"no"}'
        assert write_error("") == b'{"Error":""}'

    def test_scores_are_a_bare_list_of_integers(self) -> None:
        assert write_scores(["n1", "n2"], [0, 10]) == b'[{"Host":"n1","Score":0},{"Host":"n2","Score":10}]'

    def test_kept_candidates_are_always_in_the_meta_form(self) -> None:
        written = write_preemption(read_preemption(PREEMPTION).candidates[:1])
        assert written == (b'{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"a"},{"UID":"b"}],"NumPDBViolations":1}}}')
        assert write_preemption([]) == b'{"NodeNameToMetaVictims":{}}'
