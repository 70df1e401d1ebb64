package node

import (
	"context"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
)

// glance is how often a condition is looked at while nothing changes.
const glance = 500 * time.Millisecond

// world is what the API server shows, kept by watches.
type world struct {
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	events     corelisters.EventLister
	daemonSets appslisters.DaemonSetLister
	csiNodes   storagelisters.CSINodeLister

	stop context.CancelFunc

	lock sync.Mutex
	// changed is closed and replaced whenever any object changes.
	changed chan struct{}
	// histories hear of every state of the CSINode.
	histories []*history
}

// history is one driver's presence in the CSINode: present at first, then each change once.
type history struct {
	driver  string
	present bool
	// gone is how long it was not there in all its absences that have ended, since when it is absent otherwise.
	gone     time.Duration
	absences int
	since    time.Time
}

func watchWorld(t *testing.T, client kubernetes.Interface) *world {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	w := &world{
		pods:       factory.Core().V1().Pods().Lister(),
		nodes:      factory.Core().V1().Nodes().Lister(),
		events:     factory.Core().V1().Events().Lister(),
		daemonSets: factory.Apps().V1().DaemonSets().Lister(),
		csiNodes:   factory.Storage().V1().CSINodes().Lister(),
		changed:    make(chan struct{}),
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    w.note,
		UpdateFunc: func(_, object any) { w.note(object) },
		DeleteFunc: w.note,
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Core().V1().Nodes().Informer(), factory.Core().V1().Events().Informer(),
		factory.Apps().V1().DaemonSets().Informer(), factory.Storage().V1().CSINodes().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.stop = cancel
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return w
}

func (w *world) note(object any) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if csiNode, ok := object.(*storagev1.CSINode); ok {
		for _, history := range w.histories {
			history.note(driverIn(csiNode, history.driver) != nil)
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) change() <-chan struct{} {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.changed
}

// follow begins while the driver is in the CSINode.
func (w *world) follow(t *testing.T, driver string) *history {
	t.Helper()
	if w.driver(driver) == nil {
		t.Fatalf("%s is not in the CSINode", driver)
	}
	h := &history{driver: driver, present: true}
	w.lock.Lock()
	defer w.lock.Unlock()
	w.histories = append(w.histories, h)
	return h
}

func (h *history) note(present bool) {
	switch {
	case h.present && !present:
		h.since = time.Now()
		h.absences++
	case !h.present && present:
		h.gone += time.Since(h.since)
	}
	h.present = present
}

// wantAbsences is for the end, when the driver is there again. How long an absence may last is the kubelet's: it takes the
// driver out as soon as the socket at its path is another one, and registers that one in its reconciler's next pass.
func (w *world) wantAbsences(t *testing.T, h *history, want int, longest time.Duration) {
	t.Helper()
	w.lock.Lock()
	defer w.lock.Unlock()
	t.Logf("%s was out of the CSINode %d times, for %.1f s", h.driver, h.absences, h.gone.Seconds())
	if h.absences != want || h.gone > longest {
		t.Errorf("want %d times, for %s at most", want, longest)
	}
}

// await looks again whenever something changed, and often enough for what no object shows. The condition tells what is missing, nothing when it holds.
func (w *world) await(t *testing.T, limit time.Duration, what string, condition func() string) {
	t.Helper()
	begin := time.Now()
	deadline := time.After(limit)
	for {
		changed := w.change()
		missing := condition()
		if missing == "" {
			t.Logf("%5.1f s: %s", time.Since(begin).Seconds(), what)
			return
		}
		select {
		case <-changed:
		case <-time.After(glance):
		case <-deadline:
			t.Fatalf("not within %s: %s: %s", limit, what, missing)
		}
	}
}

// hold looks whenever something changed until the time is over: all the while the condition must hold.
func (w *world) hold(t *testing.T, duration time.Duration, what string, condition func() string) {
	t.Helper()
	end := time.After(duration)
	for {
		changed := w.change()
		if missing := condition(); missing != "" {
			t.Fatalf("not for %s: %s: %s", duration, what, missing)
		}
		select {
		case <-changed:
		case <-end:
			t.Logf("for %s: %s", duration, what)
			return
		}
	}
}

func (w *world) nodeReady() string {
	node, err := w.nodes.Get(nodeName)
	if err != nil {
		return err.Error()
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "its conditions say something else"
}

// driver is its entry in the CSINode, nil if there is none.
func (w *world) driver(name string) *storagev1.CSINodeDriver {
	csiNode, err := w.csiNodes.Get(nodeName)
	if err != nil {
		return nil
	}
	return driverIn(csiNode, name)
}

func driverIn(csiNode *storagev1.CSINode, name string) *storagev1.CSINodeDriver {
	for i := range csiNode.Spec.Drivers {
		if csiNode.Spec.Drivers[i].Name == name {
			return &csiNode.Spec.Drivers[i]
		}
	}
	return nil
}

// node is a copy that may be read at leisure.
func (w *world) node(t *testing.T) *corev1.Node {
	t.Helper()
	node, err := w.nodes.Get(nodeName)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// podsIn are all of the namespace, those that are going away too.
func (w *world) podsIn(namespace string) []*corev1.Pod {
	pods, err := w.pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		return nil // A lister over a cache has no errors.
	}
	return pods
}

func (w *world) daemonSet(namespace, name string) *appsv1.DaemonSet {
	daemonSet, err := w.daemonSets.DaemonSets(namespace).Get(name)
	if err != nil {
		return nil
	}
	return daemonSet
}

// event is the message of the first event with that reason.
func (w *world) event(namespace, reason string) string {
	events, err := w.events.Events(namespace).List(labels.Everything())
	if err != nil {
		return err.Error()
	}
	for _, event := range events {
		if event.Reason == reason {
			return event.Reason + ": " + event.Message
		}
	}
	return ""
}
