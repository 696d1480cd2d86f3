// Answers, by kube-scheduler's own code, which nodes pass all filters for a pod, and which plugin rejects the others.
//
// A line of standard input is a case, and a line of standard output its answer: README.md has both.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

type question struct {
	// All that the API server has, pods that run included.
	Objects []json.RawMessage `json:"objects"`
	Steps   []step            `json:"steps"`
}

// A step asks about a pod. With a node, the pod comes there if the node passes, and later steps see it there.
type step struct {
	Pod  json.RawMessage `json:"pod"`
	Node string          `json:"node,omitempty"`
}

type answer struct {
	// One for each step, but none after a step whose node did not pass.
	Steps []finding `json:"steps"`
	// Why there is no answer. A case for people: the other fields mean nothing.
	Error string `json:"error,omitempty"`
}

type finding struct {
	// Why the API server would not take the pod; nothing is said of nodes then.
	Invalid string `json:"invalid,omitempty"`
	// Why kube-scheduler's attempt fails, whatever single nodes say: a plugin has an error, which is no rejection.
	Failed string `json:"failed,omitempty"`
	// By the name of each node, why it is rejected, or the error. A node that passes is not in it.
	Rejected map[string]rejection `json:"rejected"`
}

type rejection struct {
	Plugin string `json:"plugin"`
	Reason string `json:"reason"`
}

// The default profile, read once.
var profile = func() config.KubeSchedulerProfile {
	var versioned configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&versioned)
	var found config.KubeSchedulerConfiguration
	if err := scheme.Scheme.Convert(&versioned, &found, nil); err != nil {
		panic(err)
	}
	return found.Profiles[0]
}()

// A scheduler is what kube-scheduler's New makes, without a queue and without anything that runs by itself.
type scheduler struct {
	framework framework.Framework
	snapshot  *internalcache.Snapshot
	devices   fwk.PreBindPlugin
}

func newScheduler(ctx context.Context, objects map[string][]runtime.Object, recorder *metrics.MetricAsyncRecorder) (*scheduler, error) {
	client := &api{}
	factory, made, err := makeInformers(client, objects)
	if err != nil {
		return nil, err
	}
	client.claims = made["ResourceClaim"]
	devices, err := newDevices(ctx, factory)
	if err != nil {
		return nil, err
	}
	found := &scheduler{snapshot: internalcache.NewSnapshot(listRunning(objects), list[*v1.Node](objects["Node"]))}
	registry := plugins.NewInTreeRegistry()
	makeDevices := registry[dynamicresources.Name]
	registry[dynamicresources.Name] = func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		plugin, err := makeDevices(ctx, args, handle)
		if err == nil {
			found.devices = plugin.(fwk.PreBindPlugin)
		}
		return plugin, err
	}
	found.framework, err = frameworkruntime.NewFramework(ctx, registry, &profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithEventRecorder(&events.FakeRecorder{}),
		frameworkruntime.WithSharedDRAManager(devices),
		frameworkruntime.WithSnapshotSharedLister(found.snapshot),
		frameworkruntime.WithMutableSnapshotLister(found.snapshot),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()),
		frameworkruntime.WithPodsInPreBind(frameworkruntime.NewPodsInPreBindMap()),
		frameworkruntime.WithMetricsRecorder(recorder),
		frameworkruntime.WithParallelism(1),
	)
	return found, err
}

// newDevices does what kube-scheduler's New and addAllEventHandlers do for ResourceClaims.
func newDevices(ctx context.Context, factory informers.SharedInformerFactory) (*dynamicresources.DefaultDRAManager, error) {
	group := factory.Resource().V1()
	options := resourceslicetracker.Options{
		EnableDeviceTaintRules:   utilfeature.DefaultFeatureGate.Enabled(features.DRADeviceTaintRules),
		EnableConsumableCapacity: utilfeature.DefaultFeatureGate.Enabled(features.DRAConsumableCapacity),
		SliceInformer:            group.ResourceSlices(),
	}
	if options.EnableDeviceTaintRules {
		options.TaintInformer = group.DeviceTaintRules()
	}
	tracker, err := resourceslicetracker.StartTracker(ctx, options)
	if err != nil {
		return nil, err
	}
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), group.ResourceClaims().Informer(), "ResourceClaim", "", nil)
	found := dynamicresources.NewDRAManager(ctx, claims, tracker, factory)
	handler, ok := found.DeviceClassResolver().(cache.ResourceEventHandler)
	if ok {
		_, err = group.DeviceClasses().Informer().AddEventHandler(handler)
	}
	return found, err
}

// listRunning returns the pods that kube-scheduler's cache has on nodes that there are.
func listRunning(objects map[string][]runtime.Object) []*v1.Pod {
	nodes := map[string]bool{}
	for _, node := range list[*v1.Node](objects["Node"]) {
		nodes[node.Name] = true
	}
	var found []*v1.Pod
	for _, pod := range list[*v1.Pod](objects["Pod"]) {
		ended := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
		if nodes[pod.Spec.NodeName] && !ended {
			found = append(found, pod)
		}
	}
	return found
}

func list[T runtime.Object](objects []runtime.Object) []T {
	found := make([]T, len(objects))
	for index, object := range objects {
		found[index] = object.(T)
	}
	return found
}

// try asks all filters about a pod, as findNodesThatFitPod of kube-scheduler does. Unlike there, an error on a node does
// not keep the other nodes from being asked.
func (s *scheduler) try(ctx context.Context, state fwk.CycleState, pod *v1.Pod) (finding, error) {
	nodes, err := s.snapshot.NodeInfos().List()
	if err != nil {
		return finding{}, err
	}
	found := finding{Rejected: map[string]rejection{}}
	for _, plugin := range s.framework.PreEnqueuePlugins() {
		if status := plugin.PreEnqueue(ctx, pod); !status.IsSuccess() {
			found.reject(status.WithPlugin(plugin.Name()), nodes...)
			return found, nil
		}
	}
	some, status, choosers := s.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		found.reject(status, nodes...)
		return found, nil
	}
	for _, node := range nodes {
		if !some.AllNodes() && !some.NodeNames.Has(node.Node().Name) {
			left := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "not among the nodes that PreFilter leaves")
			found.reject(left.WithPlugin(strings.Join(sets.List(choosers), ", ")), node)
			continue
		}
		if status := s.framework.RunFilterPlugins(ctx, state, pod, node); !status.IsSuccess() {
			found.reject(status, node)
		}
	}
	return found, nil
}

func (f *finding) reject(status *fwk.Status, nodes ...fwk.NodeInfo) {
	reason := strings.Join(status.Reasons(), "; ")
	if !status.IsRejected() {
		f.Failed = reason
	}
	for _, node := range nodes {
		f.Rejected[node.Node().Name] = rejection{Plugin: status.Plugin(), Reason: reason}
	}
}

// place assumes a pod on a node that passes. Its devices are bound. Its volumes stay assumed, as they do until the
// controller for volumes has acted.
func (s *scheduler) place(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) error {
	if status := s.framework.RunReservePluginsReserve(ctx, state, pod, node); !status.IsSuccess() {
		return fmt.Errorf("Reserve of %s on %s: %w", pod.Name, node, status.AsError())
	}
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = node
	info, err := framework.NewPodInfo(assumed)
	if err != nil {
		return err
	}
	if err := s.snapshot.AssumePod(info); err != nil {
		return err
	}
	if status := s.devices.PreBind(ctx, state, pod, node); !status.IsSuccess() {
		return fmt.Errorf("PreBind of %s on %s: %w", pod.Name, node, status.AsError())
	}
	return nil
}

func solve(ctx context.Context, asked question, recorder *metrics.MetricAsyncRecorder) (answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	objects := map[string][]runtime.Object{}
	for _, raw := range asked.Objects {
		kind, object, err := read(raw)
		if err != nil {
			return answer{}, err
		}
		objects[kind] = append(objects[kind], object)
	}
	scheduler, err := newScheduler(ctx, objects, recorder)
	if err != nil {
		return answer{}, err
	}
	found := answer{Steps: []finding{}}
	for _, step := range asked.Steps {
		_, object, err := read(step.Pod)
		if err != nil {
			return answer{}, err
		}
		pod, invalid, err := admit(ctx, object.(*v1.Pod))
		if err != nil {
			return answer{}, err
		}
		if invalid != "" {
			found.Steps = append(found.Steps, finding{Invalid: invalid})
			continue
		}
		state := framework.NewCycleState()
		tried, err := scheduler.try(ctx, state, pod)
		if err != nil {
			return answer{}, err
		}
		found.Steps = append(found.Steps, tried)
		if step.Node == "" {
			continue
		}
		if _, refused := tried.Rejected[step.Node]; refused || tried.Failed != "" {
			break
		}
		if err := scheduler.place(ctx, state, pod, step.Node); err != nil {
			return answer{}, err
		}
	}
	return found, nil
}

func main() {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	_ = flags.Set("logtostderr", "false")
	_ = flags.Set("stderrthreshold", "FATAL")
	klog.SetOutput(os.Stderr)
	metrics.Register()
	recorder := metrics.NewMetricsAsyncRecorder(1000, time.Second, make(chan struct{}))
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked question
		found := answer{}
		if err = json.Unmarshal(line, &asked); err == nil {
			found, err = solve(context.Background(), asked, recorder)
		}
		if err != nil {
			found = answer{Error: err.Error()}
		}
		if err := answers.Encode(found); err != nil {
			panic(err)
		}
	}
}
