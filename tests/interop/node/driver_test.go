package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

const (
	kubeletRoot = "/var/lib/kubelet"
	// attachLimit is the overlays' argument of the mock driver.
	attachLimit = 7

	// readyLimit bounds the way from a manifest to a ready pod, also after a crash loop's longest delay here.
	readyLimit = 90 * time.Second
	// goneLimit is for a pod that is told to stop: its grace period is 30 s.
	goneLimit = 60 * time.Second
	// stopLimit is for what ends by itself: shorter than the grace period, at whose end the kubelet kills.
	stopLimit = 25 * time.Second
	// livenessLimit is the longest that the manifests' liveness probes take to find out, and a grace period.
	livenessLimit = 4 * time.Minute
	// driverLiveness is a little longer than the driver's liveness probe needs to have it restarted.
	driverLiveness = 75 * time.Second
	// retryLimit is for the longest delay of those who try again: the kubelet, its crash loop, the registrar.
	retryLimit = 4 * time.Minute
	// passes is what the kubelet may need to register a socket that took another's place: its reconciler looks once a second.
	passes = 5 * time.Second
	// moment is for states that must last.
	moment = 10 * time.Second
	// requestLimit bounds a request to the registrar, as the probes do.
	requestLimit = 3 * time.Second
)

// driver is one that was applied: a DaemonSet in a namespace of its own, and what it has in common with the node.
type driver struct {
	c *cluster

	name, namespace, daemonSet string
	// container and registrar are containers' names.
	container, registrar string
	// directory is the driver's in the kubelet's root; registrationSocket is in the kubelet's registry.
	directory, registrationSocket string

	manifest string
}

// driver gives the example of an overlay another driver's name, directory and namespace, so that many are side by side.
// Nothing is applied yet.
func (c *cluster) driver(t *testing.T, overlay, name string) *driver {
	t.Helper()
	d := &driver{
		c: c, name: name + ".csi.k8s.io", namespace: "csi-" + name, daemonSet: "csi-" + name + "-node",
		container: name, registrar: "node-driver-registrar", directory: filepath.Join(kubeletRoot, "plugins", "csi-"+name),
	}
	d.registrationSocket = filepath.Join(kubeletRoot, "plugins_registry", d.name+"-reg.sock")
	d.manifest = strings.ReplaceAll(c.render(t, overlay), "hostpath", name)
	return d
}

// hookDriver is the driver of the v1.3-era manifests.
func (c *cluster) hookDriver(t *testing.T) *driver {
	t.Helper()
	d := &driver{
		c: c, name: "rbd.csi.ceph.com", namespace: "csi-rbd", daemonSet: "csi-rbdplugin",
		container: "csi-rbdplugin", registrar: "driver-registrar-rbd",
		directory: filepath.Join(kubeletRoot, "plugins", "rbd.csi.ceph.com"),
	}
	d.registrationSocket = filepath.Join(kubeletRoot, "plugins_registry", d.name+"-reg.sock")
	d.manifest = c.render(t, "hook")
	return d
}

func (c *cluster) render(t *testing.T, overlay string) string {
	t.Helper()
	return c.kubectl(t, "", "kustomize", filepath.Join(*settings, "overlays", overlay))
}

// apply leaves what it made to the end of the test.
func (d *driver) apply(t *testing.T) {
	t.Helper()
	d.c.kubectl(t, d.manifest, "apply", "--filename=-")
	t.Cleanup(func() {
		if t.Failed() {
			d.tell(t)
		}
		d.c.kubectl(t, d.manifest, "delete", "--filename=-", "--wait=false", "--ignore-not-found")
	})
}

// change replaces in the manifest, in pairs, each of which must find something.
func (d *driver) change(t *testing.T, changes ...string) {
	t.Helper()
	for i := 0; i < len(changes); i += 2 {
		changed := strings.ReplaceAll(d.manifest, changes[i], changes[i+1])
		if changed == d.manifest {
			t.Fatalf("the manifest has no %q", changes[i])
		}
		d.manifest = changed
	}
}

// tell shows what kubectl would, for a scenario that failed.
func (d *driver) tell(t *testing.T) {
	t.Helper()
	for _, pod := range d.c.world.podsIn(d.namespace) {
		status, _ := json.MarshalIndent(pod.Status.ContainerStatuses, "", " ")
		t.Logf("pod %s: %s\n%s", pod.Name, pod.Status.Phase, status)
		for _, container := range pod.Spec.Containers {
			for _, previous := range []bool{true, false} {
				text, _ := d.c.client.CoreV1().Pods(d.namespace).
					GetLogs(pod.Name, &corev1.PodLogOptions{Container: container.Name, Previous: previous}).Do(context.Background()).Raw()
				t.Logf("log of %s, previous %t:\n%s", container.Name, previous, text)
			}
		}
	}
	t.Logf("CSINode: %v", d.c.world.driver(d.name))
	d.c.kubectlLogged(t, "get", "events", "--namespace="+d.namespace)
}

func (c *cluster) kubectlLogged(t *testing.T, args ...string) {
	t.Helper()
	t.Log(c.kubectl(t, "", args...))
}

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

// pod is the only one that is not going away.
func (d *driver) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	var staying *corev1.Pod
	for _, pod := range d.c.world.podsIn(d.namespace) {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if staying != nil {
			t.Fatalf("%s has more than one pod", d.daemonSet)
		}
		staying = pod
	}
	if staying == nil {
		t.Fatalf("%s has no pod", d.daemonSet)
	}
	return staying
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

func (d *driver) containerID(t *testing.T, container string) string {
	t.Helper()
	_, id, found := strings.Cut(containerStatus(d.pod(t), container).ContainerID, "://")
	if !found {
		t.Fatalf("container %s was never started", container)
	}
	return id
}

func (d *driver) signal(t *testing.T, container string, signal syscall.Signal) {
	t.Helper()
	signalContainer(t, d.containerID(t, container), signal)
}

// get asks the registrar's HTTP server.
func (d *driver) get(t *testing.T, path string) (int, string) {
	t.Helper()
	code, body, err := request(d.pod(t), path)
	if err != nil {
		t.Fatal(err)
	}
	return code, body
}

func request(pod *corev1.Pod, path string) (int, string, error) {
	client := http.Client{Timeout: requestLimit}
	response, err := client.Get("http://" + net.JoinHostPort(pod.Status.PodIP, "9809") + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(body)), err
}

// metric is the value of the first series whose name and labels begin so.
func (d *driver) metric(t *testing.T, series string) string {
	t.Helper()
	_, body := d.get(t, "/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, series) {
			fields := strings.Fields(line)
			return fields[len(fields)-1]
		}
	}
	return ""
}

// fail lets the driver's calls of the method fail with that text, from now on or before it exists; recover ends it.
func (d *driver) fail(t *testing.T, method, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(d.directory, "faults"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.directory, "faults", method), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (d *driver) recover(t *testing.T, method string) {
	t.Helper()
	if err := os.Remove(filepath.Join(d.directory, "faults", method)); err != nil {
		t.Fatal(err)
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

// delete removes the DaemonSet and waits for nothing.
func (d *driver) delete(t *testing.T) {
	t.Helper()
	d.c.kubectl(t, "", "delete", "daemonset", d.daemonSet, "--namespace="+d.namespace, "--wait=false")
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

// awaitPublications counts the sockets that the registrar's process has published; the kubelet has confirmed the last one.
func (d *driver) awaitPublications(t *testing.T, want string) {
	t.Helper()
	d.c.world.await(t, readyLimit, "publication "+want+" is confirmed", func() string {
		if got := d.metric(t, "csi_registrar_publications_total"); got != want {
			return got + " publications"
		}
		if code, body := d.get(t, "/readyz"); code != http.StatusOK {
			return body
		}
		return ""
	})
}

func (d *driver) wantGet(t *testing.T, path string, wantCode int, part string) {
	t.Helper()
	if code, body := d.get(t, path); code != wantCode || !strings.Contains(body, part) {
		t.Errorf("%s: %d %s, want %d with %q", path, code, body, wantCode, part)
	}
}

// message is how a container explained its end.
func message(ended *corev1.ContainerStateTerminated) string {
	if ended == nil {
		return ""
	}
	return ended.Message
}
