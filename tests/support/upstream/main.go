// Answers, by the libraries of Kubernetes themselves, what a text or a selector means: one JSON object a line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
)

type question struct {
	Quantity      *string
	LabelSelector *metav1.LabelSelector
	Labels        map[string]string
	NodeSelector  *v1.NodeSelector
	Node          *v1.Node
	Toleration    *v1.Toleration
	Taint         *v1.Taint
	Expression    *string
	Device        *resourceapi.Device
	Driver        string
	Allocation    *allocation
}

// A node, and the claims of one pod, for as many such pods as there are devices for.
type allocation struct {
	Node    *v1.Node
	Slices  []*resourceapi.ResourceSlice
	Classes []*resourceapi.DeviceClass
	Claims  []*resourceapi.ResourceClaim
	Taken   []resourceapi.DeviceRequestAllocationResult
	Most    int
}

type answer struct {
	Valid   bool
	Value   int64
	Milli   int64
	Matches bool
	Fails   bool
}

// The features that are on in 1.37 by default.
var compiler = cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})

func matchDevice(asked question) answer {
	compiled := compiler.CompileCELExpression(*asked.Expression, cel.Options{})
	if compiled.Error != nil {
		return answer{}
	}
	found, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver: asked.Driver, AllowMultipleAllocations: asked.Device.AllowMultipleAllocations,
		Attributes: asked.Device.Attributes, Capacity: asked.Device.Capacity,
	})
	return answer{Valid: true, Matches: found, Fails: err != nil}
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no class %s", name)
}

// As kube-scheduler 1.37 has them by default.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
	DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true,
}

func take(state structured.AllocatedState, device resourceapi.DeviceRequestAllocationResult) {
	id := structured.MakeDeviceID(device.Driver, device.Pool, device.Device)
	switch {
	case device.AdminAccess != nil && *device.AdminAccess:
	case device.ShareID != nil:
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, device.ShareID))
		if device.ConsumedCapacity != nil {
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, device.ConsumedCapacity))
		}
	default:
		state.AllocatedDevices.Insert(id)
	}
}

func allocate(asked *allocation) answer {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, device := range asked.Taken {
		take(state, device)
	}
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	for pods := 0; pods < asked.Most; pods++ {
		ctx := context.Background()
		allocator, err := structured.NewAllocator(ctx, features, state, classes(asked.Classes), asked.Slices, cache)
		if err != nil {
			panic(err)
		}
		results, err := allocator.Allocate(ctx, asked.Node, asked.Claims)
		if err != nil || len(results) == 0 {
			return answer{Valid: true, Value: int64(pods), Fails: err != nil}
		}
		for _, result := range results {
			for _, device := range result.Devices.Results {
				take(state, device)
			}
		}
	}
	return answer{Valid: true, Value: int64(asked.Most)}
}

func find(asked question) answer {
	switch {
	case asked.Allocation != nil:
		return allocate(asked.Allocation)
	case asked.Expression != nil:
		return matchDevice(asked)
	case asked.Quantity != nil:
		found, err := resource.ParseQuantity(*asked.Quantity)
		if err != nil {
			return answer{}
		}
		return answer{Valid: true, Value: found.Value(), Milli: found.MilliValue()}
	case asked.NodeSelector != nil:
		found, err := nodeaffinity.NewLazyErrorNodeSelector(asked.NodeSelector).Match(asked.Node)
		return answer{Valid: err == nil, Matches: found}
	case asked.Toleration != nil:
		return answer{Valid: true, Matches: asked.Toleration.ToleratesTaint(klog.Background(), asked.Taint, false)}
	}
	selector, err := metav1.LabelSelectorAsSelector(asked.LabelSelector)
	if err != nil {
		return answer{}
	}
	return answer{Valid: true, Matches: selector.Matches(labels.Set(asked.Labels))}
}

func main() {
	klog.SetOutput(os.Stderr)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := answers.Encode(find(asked)); err != nil {
			panic(err)
		}
	}
}
