"""Expected ends of pods."""

import math

import pytest

from serried.api.job import Job
from serried.api.names import GroupKey, Key, read_time
from serried.api.pod import Pod
from serried.cluster.cache import EndedMembers, Store
from serried.cluster.run_times import Endings, PodEnds, Trust
from serried.plan.limit import Limit
from serried.plan.request import PlanRequest
from serried.rules.all import RULES
from tests.support.builders import Builder, JobBuilder, PodBuilder, job, pod, pod_group
from tests.support.memory import read_memory

TRAIN = job("train").size(2).running("trainer")
MINUTE = 60


def at(text: str) -> int:
    """A time of day as seconds since 1970."""
    found = read_time({"at": f"2026-11-21T{text}Z"}, "at")
    assert found is not None
    return found


def stamp(text: str) -> str:
    return f"2026-11-21T{text}Z"


def of(work: str, index: int = 0) -> PodBuilder:
    return pod(f"{work}-{index}").of_job(work, index).on("n1").started(stamp("10:00:00"))


def known(*builders: Builder) -> Store:
    store = Store([], rules=RULES)
    for builder in builders:
        match builder:
            case JobBuilder():
                store.put_job(builder.value())
            case PodBuilder():
                store.put_pod(builder.value())
            case _:
                raise TypeError(type(builder))
    return store


NOW = float(at("10:01:00"))


def earlier(name: str, minutes: int, work: JobBuilder = TRAIN) -> tuple[JobBuilder, PodBuilder]:
    """A Job that has run for so many minutes, and the pod that did."""
    done = pod(f"{name}-0").of_job(name, 0).on("n1").started(stamp("08:00:00"))
    named = work.with_field(name, "metadata", "name").uid(f"job-{name}")
    return named, done.succeeded(stamp(f"08:{minutes:02}:00"))


class TestWhatIsSaid:
    @pytest.mark.parametrize(
        ("what", "of_job", "expected"),
        [
            pytest.param(of("train").active_deadline(300), TRAIN, "10:05:00", id="a pod ends by its own deadline"),
            pytest.param(
                of("train"), TRAIN.started(stamp("09:59:00")).active_deadline(300), "10:04:00", id="its Job's"
            ),
            pytest.param(
                of("train").active_deadline(60),
                TRAIN.started(stamp("09:59:00")).active_deadline(300),
                "10:01:00",
                id="the earlier of the two",
            ),
            pytest.param(
                pod("train-0").of_job("train", 0).active_deadline(300),
                TRAIN,
                "10:06:00",
                id="one not begun, from now on",
            ),
            pytest.param(
                pod("train-0").of_job("train", 0),
                TRAIN.active_deadline(300),
                "10:06:00",
                id="that of a Job whose start is not written yet, from now on",
            ),
            pytest.param(
                of("train").with_field(stamp("10:01:30"), "metadata", "deletionTimestamp"),
                TRAIN,
                "10:01:30",
                id="one that is being deleted, within its grace",
            ),
        ],
    )
    def test_deadlines(self, what: PodBuilder, of_job: JobBuilder, expected: str) -> None:
        for trust in Trust:
            assert known(of_job, what).endings.expect(what.value(), NOW, trust) == at(expected)

    @pytest.mark.parametrize(
        "what",
        [
            pytest.param(of("train"), id="a Job without a deadline"),
            pytest.param(pod("p").on("n1"), id="nobody"),
            pytest.param(pod("p").controlled_by("PyTorchJob", "t"), id="a controller that we do not know"),
            pytest.param(pod("p").of_job("gone", 0), id="a Job that is not known"),
            pytest.param(pod("p").of_job("train", 0, uid="earlier"), id="an earlier Job of the name"),
        ],
    )
    def test_nobody_can_tell_of_a_pod_of(self, what: PodBuilder) -> None:
        assert known(TRAIN, what).endings.expect(what.value(), NOW) is None

    @pytest.mark.parametrize("kind", ["DaemonSet", "ReplicaSet", "StatefulSet", "Node"])
    def test_pods_that_run_until_they_are_not_wanted_stay(self, kind: str) -> None:
        what = pod("p").on("n1").controlled_by(kind, "x")
        assert known(what).endings.expect(what.value(), NOW) == math.inf
        assert known(what).endings.expect(what.active_deadline(60).started(stamp("10:00:00")).value(), NOW) == at(
            "10:01:00"
        )

    def test_of_a_job_of_several_waves_only_its_own_deadline_counts(self) -> None:
        waves = TRAIN.size(2, 8)
        what = of("train").active_deadline(60)
        assert known(waves, what).endings.expect(what.value(), NOW) is None
        bounded = waves.started(stamp("10:00:00")).active_deadline(600)
        assert known(bounded, what).endings.expect(what.value(), NOW) == at("10:10:00")


class TestWhatWasMeasured:
    def test_a_pod_is_expected_to_run_as_long_as_those_of_earlier_jobs_that_did_the_same(self) -> None:
        store = known(TRAIN, of("train"), *earlier("monday", 20), *earlier("tuesday", 30), *earlier("friday", 50))
        assert expect(store) == at("10:30:00")

    def test_a_measurement_is_no_deadline(self) -> None:
        store = known(TRAIN, of("train"), *earlier("monday", 20))
        assert store.endings.expect(of("train").value(), NOW, Trust.DEADLINES) is None

    def test_a_job_that_does_something_else_says_nothing(self) -> None:
        store = known(TRAIN, of("train"), *earlier("monday", 20, work=TRAIN.running("other")))
        assert expect(store) is None

    def test_the_longest_of_a_jobs_pods_is_its_run_time(self) -> None:
        named, first = earlier("monday", 20)
        second = first.with_field("monday-1", "metadata", "name").uid("second").succeeded(stamp("08:40:00"))
        assert expect(known(TRAIN, of("train"), named, second, first)) == at("10:40:00")

    def test_pods_that_are_seen_before_their_job_count(self) -> None:
        named, done = earlier("monday", 20)
        assert expect(known(TRAIN, of("train"), done, named)) == at("10:20:00")

    def test_the_last_five_jobs_count(self) -> None:
        days = [part for day in range(5) for part in earlier(f"long-{day}", 50)]
        news = [part for day in range(3) for part in earlier(f"short-{day}", 5)]
        assert expect(known(TRAIN, of("train"), *days, *news)) == at("10:05:00")

    def test_a_pod_that_outlives_what_was_measured_is_given_as_long_again(self) -> None:
        store = known(TRAIN, of("train"), *earlier("monday", 20))
        assert store.endings.expect(of("train").value(), at("10:20:00")) == at("10:40:00")
        assert store.endings.expect(of("train").value(), at("10:50:00")) == at("11:20:00")

    def test_a_deadline_bounds_what_was_measured(self) -> None:
        store = known(TRAIN, *earlier("monday", 20))
        assert store.endings.expect(of("train").active_deadline(300).value(), NOW) == at("10:05:00")

    def test_a_pod_that_succeeds_without_saying_when_it_began_teaches_nothing(self) -> None:
        named, done = earlier("monday", 20)
        assert expect(known(TRAIN, of("train"), named, done.with_field(None, "status", "startTime"))) is None

    def test_the_memory_is_bounded(self) -> None:
        jobs: dict[Key, Job] = {}
        endings = Endings(jobs)
        for number in range(3000):
            jobs[Key("default", "j")] = job("j").running(f"image-{number}").value()
            endings.learn(done())
        assert len(read_memory(endings)["runs"]) == 2000


def expect(store: Store) -> float | None:
    return store.endings.expect(of("train").value(), NOW)


def done() -> Pod:
    return pod("j-0").of_job("j", 0).started(stamp("08:00:00")).succeeded(stamp("08:01:00")).value()


class TestWork:
    def test_jobs_that_differ_in_names_and_labels_only_do_the_same(self) -> None:
        labels = {"job-name": "other", "controller-uid": "7"}
        other = TRAIN.with_field(labels, "spec", "template", "metadata", "labels")
        named = other.with_field("other", "spec", "template", "spec", "subdomain")
        assert named.value().work == TRAIN.value().work

    def test_another_image_is_other_work(self) -> None:
        assert TRAIN.running("other").value().work != TRAIN.value().work


def test_a_slot_that_is_kept_for_a_dead_member_ends_once_also_when_another_one_has_got_it() -> None:
    store = Store(["default-scheduler"], ended=EndedMembers.KEEP_SLOTS, rules=RULES)
    store.put_group(pod_group("g").gang(2).value())
    for name in ("a", "b"):
        store.put_pod(pod(name).in_group("g").on("n1").value())
    store.drop_pod("pod-a")
    store.put_pod(pod("c").in_group("g").value())
    (vacancy,) = store.vacancies
    assert list_endings(store) == sorted([vacancy.holder, "pod-b"])
    store.vacancies.assign(vacancy, "pod-c")
    assert list_endings(store) == ["pod-b", "pod-c"]


def list_endings(store: Store) -> list[str]:
    """Return the UIDs of the pods whose end is awaited by a gang that does not exist yet."""
    about = (store.pods, store.groups, store.members, store.occupancy, store.vacancies, store.endings)
    ends = PodEnds(*about, clock=lambda: 0.0, wall=lambda: NOW)
    asked = PlanRequest([pod("x").value()], 1, None)
    return sorted(each.uid for each in ends.list_others(GroupKey("default", "other"), asked, {}, Limit()))
