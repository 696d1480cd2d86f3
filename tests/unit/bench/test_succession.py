"""A control plane that is restarted as another one keeps all of its command line but what its spec decides."""

from bench.cluster import Spec
from bench.cluster.succession import list_flags, write_command

OLD = (
    "/old/kube-apiserver",
    "--etcd-servers=http://here",
    "--feature-gates=GenericWorkload=true",
    "--runtime-config=a=true",
)


def test_another_program_gets_the_flags_of_the_new_spec() -> None:
    flags = list_flags(Spec(name="a", kubernetes="1.36.4"))["kube-apiserver"]
    assert write_command(OLD, "/new/kube-apiserver", flags) == [
        "/new/kube-apiserver",
        "--etcd-servers=http://here",
        "--feature-gates=GenericWorkload=true",
        "--runtime-config=scheduling.k8s.io/v1alpha2=true",
    ]


def test_gates_that_the_new_spec_does_not_have_go() -> None:
    flags = list_flags(Spec(name="a", api="fallback"))["kube-apiserver"]
    assert write_command(OLD, "/old/kube-apiserver", flags) == ["/old/kube-apiserver", "--etcd-servers=http://here"]
