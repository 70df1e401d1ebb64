package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"interop/harness/fakeplugin"
	"interop/kubelet/common/protocol"
)

// The kubelet's own code and ours live through the same, each on a node of its own: the API server is asked the same, in the
// same order, and holds the same after each step.
func asTheKubelet(t *testing.T, c *cluster) {
	ours, kubelets := make(chan []string, 1), make(chan []string, 1)
	t.Run("both", func(t *testing.T) {
		for name, got := range map[string]chan []string{"ours": ours, "kubelets": kubelets} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				n := c.newNode(t, "as-"+name)
				n.kubelet = name == "kubelets"
				got <- n.live(t)
			})
		}
	})
	if t.Failed() {
		return
	}
	got, want := <-ours, <-kubelets
	t.Logf("both:\n%s", strings.Join(want, "\n"))
	if !slices.Equal(got, want) {
		t.Errorf("ours:\n%s", strings.Join(got, "\n"))
	}
}

// live is all that can happen to a driver on a node; it tells the requests of each step, and the objects after it.
func (n *node) live(t *testing.T) []string {
	var story []string
	told := 0
	tell := func(step string) {
		requests := n.requests(t)
		story = append(story, "== "+step)
		story = append(story, requests[told:]...)
		story = append(story, n.objects(t)...)
		told = len(requests)
	}
	one := settings
	one.Name = n.name + ".example.com"
	p := plugin{fakeplugin.Start(t, n.Root, *fakePluginBin, n.RegistrationSocket, n.DriverSocket)}
	p.Configure(t, one)
	p.Do(t, protocol.PluginCommand{Command: protocol.ServeCSI})

	n.startManager(t)
	tell("initialisation")
	p.Do(t, protocol.PluginCommand{Command: protocol.Publish})
	p.awaitRegistered(t)
	tell("registration")
	n.stopManager(t)
	n.startManager(t)
	p.awaitRegistered(t)
	tell("restart of the kubelet")

	one.MaxVolumes = 9
	p.Configure(t, one)
	period := int64(10)
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: one.Name},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &period},
	}
	drivers := n.cluster.admin.StorageV1().CSIDrivers()
	if _, err := drivers.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the new limit", func(context.Context) bool {
		entries := n.csiNode(t).Spec.Drivers
		return len(entries) == 1 && *entries[0].Allocatable.Count == 9
	})
	tell("changed limit")
	if err := drivers.Delete(t.Context(), one.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	p.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
	n.awaitForgotten(t)
	tell("removal")

	zone := "z2"
	n.setLabel(t, corev1.LabelTopologyZone, &zone)
	p.Do(t, protocol.PluginCommand{Command: protocol.Publish})
	tell("collision: " + p.awaitRefusedOnce(t))
	n.stopManager(t)

	if err := n.cluster.admin.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.create(t)
	n.startManager(t)
	p.Do(t, protocol.PluginCommand{Command: protocol.Publish})
	p.awaitRegistered(t)
	tell("another node of the same name")
	p.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
	n.awaitForgotten(t)

	one.Topology = map[string]string{"node-restriction.kubernetes.io/zone": "z1"}
	p.Configure(t, one)
	p.Do(t, protocol.PluginCommand{Command: protocol.Publish})
	tell("a label that a node may not set: " + p.awaitRefusedOnce(t))
	for i := range story {
		story[i] = strings.ReplaceAll(story[i], n.name, "NODE")
	}
	return story
}

// objects are Node and CSINode, as far as registration is concerned, without what differs from node to node.
func (n *node) objects(t *testing.T) []string {
	t.Helper()
	node, csiNode := n.object(t), n.csiNode(t)
	owned := len(csiNode.OwnerReferences) == 1 && csiNode.OwnerReferences[0].UID == node.UID
	owners := slices.Clone(csiNode.OwnerReferences)
	for i := range owners {
		owners[i].UID = ""
	}
	lines := []string{
		fmt.Sprintf("-> Node %v %v", node.Labels, node.Annotations),
		fmt.Sprintf("-> CSINode %v %v owned=%t", csiNode.Annotations, owners, owned),
	}
	for _, d := range csiNode.Spec.Drivers {
		lines = append(lines, fmt.Sprintf("-> driver %s %s %q %d", d.Name, d.NodeID, d.TopologyKeys, *d.Allocatable.Count))
	}
	return lines
}

func (n *node) awaitForgotten(t *testing.T) {
	t.Helper()
	await(t, "a Node without node ids", func(context.Context) bool {
		_, found := n.object(t).Annotations[idsKey]
		return !found
	})
}

func (p plugin) awaitRegistered(t *testing.T) {
	t.Helper()
	p.Await(t, "a registration", patience, func(e protocol.PluginEvent) bool {
		return e.Event == protocol.Called && e.Registered != nil && *e.Registered
	})
}

// awaitRefusedOnce returns what the plugin was told; its socket is gone before it is tried again, half a second later.
func (p plugin) awaitRefusedOnce(t *testing.T) string {
	t.Helper()
	refused := p.Await(t, "a refusal", patience, func(e protocol.PluginEvent) bool {
		return e.Event == protocol.Called && e.Registered != nil && !*e.Registered
	})
	p.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
	return refused.Error
}
