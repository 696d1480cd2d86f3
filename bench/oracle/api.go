package main

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/registry/core/pod"
)

// read returns an object as the API server stores it: with its defaults, a UID and a version.
func read(raw json.RawMessage) (string, runtime.Object, error) {
	var found metav1.TypeMeta
	if err := json.Unmarshal(raw, &found); err != nil {
		return "", nil, err
	}
	empty, known := kinds[found.Kind]
	if !known {
		return "", nil, fmt.Errorf("no kind %q", found.Kind)
	}
	object := empty.DeepCopyObject()
	if err := json.Unmarshal(raw, object); err != nil {
		return "", nil, fmt.Errorf("%s: %w", found.Kind, err)
	}
	legacyscheme.Scheme.Default(object)
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", nil, err
	}
	if accessor.GetUID() == "" {
		accessor.SetUID(types.UID(fmt.Sprintf("%s-%s-%s", found.Kind, accessor.GetNamespace(), accessor.GetName())))
	}
	if accessor.GetResourceVersion() == "" {
		accessor.SetResourceVersion("1")
	}
	return found.Kind, object, nil
}

// admit returns a pod as the API server stores it when it is created, or why the API server refuses it.
func admit(ctx context.Context, found *v1.Pod) (*v1.Pod, string, error) {
	internal := &core.Pod{}
	if err := legacyscheme.Scheme.Convert(found, internal, nil); err != nil {
		return nil, "", err
	}
	pod.Strategy.PrepareForCreate(ctx, internal)
	if wrong := pod.Strategy.Validate(ctx, internal); len(wrong) > 0 {
		return nil, wrong.ToAggregate().Error(), nil
	}
	stored := &v1.Pod{}
	if err := legacyscheme.Scheme.Convert(internal, stored, nil); err != nil {
		return nil, "", err
	}
	// What controllers and kubelets have written since.
	stored.Status = found.Status
	return stored, "", nil
}

// api is so much of an API server as DynamicResources writes to when it binds a pod: it stores each ResourceClaim as
// it is sent, and the informer has seen it when the write returns. Other calls are those of a nil interface, and panic.
type api struct {
	kubernetes.Interface
	claims *listed
	writes int
}

func (a *api) ResourceV1() resourcev1.ResourceV1Interface { return resourceGroup{api: a} }
func (a *api) CoreV1() corev1.CoreV1Interface             { return coreGroup{} }

type resourceGroup struct {
	resourcev1.ResourceV1Interface
	api *api
}

func (g resourceGroup) ResourceClaims(string) resourcev1.ResourceClaimInterface {
	return claimWriter{api: g.api}
}

type claimWriter struct {
	resourcev1.ResourceClaimInterface
	api *api
}

func (w claimWriter) Create(
	_ context.Context, claim *resourceapi.ResourceClaim, _ metav1.CreateOptions,
) (*resourceapi.ResourceClaim, error) {
	return w.api.store(claim)
}

func (w claimWriter) Update(
	_ context.Context, claim *resourceapi.ResourceClaim, _ metav1.UpdateOptions,
) (*resourceapi.ResourceClaim, error) {
	return w.api.store(claim)
}

func (w claimWriter) UpdateStatus(
	_ context.Context, claim *resourceapi.ResourceClaim, _ metav1.UpdateOptions,
) (*resourceapi.ResourceClaim, error) {
	return w.api.store(claim)
}

func (a *api) store(claim *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	a.writes++
	stored := claim.DeepCopy()
	if stored.Name == "" {
		stored.Name = fmt.Sprintf("%s%d", stored.GenerateName, a.writes)
		stored.UID = types.UID("ResourceClaim-" + stored.Name)
	}
	// Newer than anything that was given.
	stored.ResourceVersion = fmt.Sprint(1_000_000 + a.writes)
	// The caller changes what it gets.
	return stored.DeepCopy(), a.claims.put(stored)
}

type coreGroup struct{ corev1.CoreV1Interface }

func (coreGroup) Pods(string) corev1.PodInterface { return podWriter{} }

// podWriter takes what is written about a pod: the next steps are asked about what the scheduler's cache has of it.
type podWriter struct{ corev1.PodInterface }

func (podWriter) Patch(
	context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string,
) (*v1.Pod, error) {
	return &v1.Pod{}, nil
}
