package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// States that scenarios wait for: each tells what is missing, nothing when it holds.

// ready is the state that every good end has: one pod, all of it ready, and the driver in the CSINode with what it told.
func (d *driver) ready() string {
	pods := d.c.world.podsIn(d.namespace)
	if len(pods) != 1 {
		return fmt.Sprintf("%d pods", len(pods))
	}
	if pods[0].DeletionTimestamp != nil {
		return "the pod is going away"
	}
	if !isReady(pods[0]) {
		return "the pod is not ready"
	}
	return d.registered()
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// registered holds the CSINode and the Node's annotation against what the driver tells.
func (d *driver) registered() string {
	entry := d.c.world.driver(d.name)
	if entry == nil {
		return "no entry in the CSINode"
	}
	if problem := d.wrong(entry); problem != "" {
		return problem
	}
	node, err := d.c.world.nodes.Get(nodeName)
	if err != nil {
		return err.Error()
	}
	var ids map[string]string
	if err := json.Unmarshal([]byte(node.Annotations["csi.volume.kubernetes.io/nodeid"]), &ids); err != nil {
		return err.Error()
	}
	if ids[d.name] != d.name { // The mock driver's node id is its name.
		return fmt.Sprintf("the Node's annotation says %q", ids[d.name])
	}
	return ""
}

func (d *driver) wrong(entry *storagev1.CSINodeDriver) string {
	if entry.NodeID != d.name {
		return fmt.Sprintf("node id %q", entry.NodeID)
	}
	if entry.Allocatable == nil || entry.Allocatable.Count == nil || *entry.Allocatable.Count != attachLimit {
		return fmt.Sprintf("allocatable is %v", entry.Allocatable)
	}
	return ""
}

// unregistered is the state after a good end of the driver.
func (d *driver) unregistered() string {
	if d.c.world.driver(d.name) != nil {
		return "an entry in the CSINode"
	}
	node, err := d.c.world.nodes.Get(nodeName)
	if err != nil {
		return err.Error()
	}
	if annotation := node.Annotations["csi.volume.kubernetes.io/nodeid"]; strings.Contains(annotation, `"`+d.name+`"`) {
		return "the Node's annotation is " + annotation
	}
	return ""
}

func (d *driver) awaitReady(t *testing.T) {
	t.Helper()
	d.c.world.await(t, readyLimit, d.name+" is registered, its pod ready", d.ready)
}

func containerStatus(pod *corev1.Pod, container string) corev1.ContainerStatus {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			return status
		}
	}
	return corev1.ContainerStatus{} // Not there yet.
}

// restarts of a container of the only pod; -1 while there is none.
func (d *driver) restarts(container string) int32 {
	for _, pod := range d.c.world.podsIn(d.namespace) {
		if pod.DeletionTimestamp == nil {
			return containerStatus(pod, container).RestartCount
		}
	}
	return -1
}

// wantRestarts counts those of the driver and of the registrar.
func (d *driver) wantRestarts(t *testing.T, ofDriver, ofRegistrar int32) {
	t.Helper()
	if got := d.restarts(d.container); got != ofDriver {
		t.Errorf("the driver was restarted %d times, want %d", got, ofDriver)
	}
	if got := d.restarts(d.registrar); got != ofRegistrar {
		t.Errorf("the registrar was restarted %d times, want %d", got, ofRegistrar)
	}
}

// refused is the merged registrar's state while the kubelet will not have the driver: it says why, and the pod is not ready.
func (d *driver) refused(reason string) string {
	for _, pod := range d.c.world.podsIn(d.namespace) {
		if pod.Status.PodIP == "" || containerStatus(pod, d.registrar).State.Running == nil {
			continue
		}
		if code, body, err := request(pod, "/readyz"); err != nil {
			return err.Error()
		} else if code != http.StatusServiceUnavailable || !strings.Contains(body, reason) {
			return fmt.Sprintf("/readyz says %d %s", code, body)
		}
		return ""
	}
	return "no registrar is running"
}

// withoutRegistration is the state until then.
func (d *driver) withoutRegistration() string {
	for _, pod := range d.c.world.podsIn(d.namespace) {
		if isReady(pod) {
			return "the pod is ready"
		}
	}
	return d.unregistered()
}

// gone is the end of a driver whose DaemonSet was deleted.
func (d *driver) gone() string {
	if problem := fewer(len(d.c.world.podsIn(d.namespace))); problem != "" {
		return problem
	}
	return d.unregistered()
}

func (d *driver) wantRestart(container string) string {
	if got := d.restarts(container); got != 1 {
		return fmt.Sprintf("container %s was restarted %d times", container, got)
	}
	return ""
}

func (d *driver) awaitRestart(t *testing.T, container string) {
	t.Helper()
	d.c.world.await(t, readyLimit, container+" is restarted", func() string { return d.wantRestart(container) })
}

// message is how a container explained its end.
func message(ended *corev1.ContainerStateTerminated) string {
	if ended == nil {
		return ""
	}
	return ended.Message
}
