package node

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// delete removes the DaemonSet and waits for nothing.
func (d *driver) delete(t *testing.T) {
	t.Helper()
	d.c.kubectl(t, "", "delete", "daemonset", d.daemonSet, "--namespace="+d.namespace, "--wait=false")
}
