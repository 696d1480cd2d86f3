package main

import (
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// The objects of one type, as an informer that has listed them and is told of changes by put. Nothing runs beside it:
// a handler has been called with all objects when it is added, and with a change when put returns.
//
// Methods that kube-scheduler's plugins do not call are those of a nil interface, and panic.
type listed struct {
	cache.SharedIndexInformer
	indexer  cache.Indexer
	handlers []cache.ResourceEventHandler
}

type synced struct{}

var done = func() chan struct{} { made := make(chan struct{}); close(made); return made }()

func (synced) HasSynced() bool                       { return true }
func (s synced) HasSyncedChecker() cache.DoneChecker { return s }
func (synced) Name() string                          { return "listed" }
func (synced) Done() <-chan struct{}                 { return done }

func (l *listed) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return l.AddEventHandlerWithOptions(handler, cache.HandlerOptions{})
}

func (l *listed) AddEventHandlerWithOptions(
	handler cache.ResourceEventHandler, _ cache.HandlerOptions,
) (cache.ResourceEventHandlerRegistration, error) {
	l.handlers = append(l.handlers, handler)
	for _, object := range l.indexer.List() {
		handler.OnAdd(object, true)
	}
	return synced{}, nil
}

func (l *listed) AddIndexers(indexers cache.Indexers) error { return l.indexer.AddIndexers(indexers) }
func (l *listed) GetIndexer() cache.Indexer                 { return l.indexer }
func (l *listed) GetStore() cache.Store                     { return l.indexer }
func (l *listed) HasSynced() bool                           { return true }
func (l *listed) HasSyncedChecker() cache.DoneChecker       { return synced{} }

// put adds an object that is new, or the newer version of one.
func (l *listed) put(object runtime.Object) error {
	old, known, err := l.indexer.Get(object)
	if err != nil {
		return err
	}
	if err := l.indexer.Update(object); err != nil {
		return err
	}
	for _, handler := range l.handlers {
		if known {
			handler.OnUpdate(old, object)
		} else {
			handler.OnAdd(object, false)
		}
	}
	return nil
}

// By the kind of an object, an empty one of its type.
var kinds = map[string]runtime.Object{
	"Namespace":             &v1.Namespace{},
	"Node":                  &v1.Node{},
	"Pod":                   &v1.Pod{},
	"PersistentVolume":      &v1.PersistentVolume{},
	"PersistentVolumeClaim": &v1.PersistentVolumeClaim{},
	"StorageClass":          &storagev1.StorageClass{},
	"CSIDriver":             &storagev1.CSIDriver{},
	"CSINode":               &storagev1.CSINode{},
	"CSIStorageCapacity":    &storagev1.CSIStorageCapacity{},
	"VolumeAttachment":      &storagev1.VolumeAttachment{},
	"DeviceClass":           &resourceapi.DeviceClass{},
	"ResourceSlice":         &resourceapi.ResourceSlice{},
	"ResourceClaim":         &resourceapi.ResourceClaim{},
	"DeviceTaintRule":       &resourceapi.DeviceTaintRule{},
}

// makeInformers returns a factory whose informers have these objects, and the informers by kind.
func makeInformers(client kubernetes.Interface, objects map[string][]runtime.Object) (informers.SharedInformerFactory, map[string]*listed, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	made := make(map[string]*listed, len(kinds))
	for kind, empty := range kinds {
		indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		own := &listed{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)}
		for _, object := range objects[kind] {
			if err := own.indexer.Add(object); err != nil {
				return nil, nil, err
			}
		}
		// The factory keeps the first informer of a type, and gives it to all who ask for one.
		factory.InformerFor(empty, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return own })
		made[kind] = own
	}
	return factory, made, nil
}
